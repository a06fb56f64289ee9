// Products of rows with packed weights, for a CPU with AVX-512.
//
// Weights [out, in] are packed as [out / 16, in / n, 16, n], where n inputs fill 32 bits: 1 of float32, 2 of bfloat16,
// or 4 of int8. One load has these inputs for 16 outputs, and a product reads its weights once and in order. A sum
// adds the same terms in the same order however many rows there are, so that no row changes the outputs of another.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

namespace {

using at::Tensor;

constexpr int64_t LANES = 16;
constexpr int64_t MOST = 8;          // rows of a tile
constexpr int64_t GROUP = 32;        // inputs of a row that share a scale when they are rounded to int8
constexpr int64_t SMALLEST = 32768;  // bytes of weights from which a thread of its own pays

// Rows, rounded to int8 where weights are.
struct Rows {
  const int* words;      // [count, steps], each 32 bits of inputs
  const float* scales;   // [count, groups]
  const int* offsets;    // [count, groups]: what the weights' offset of 128 adds, with a minus sign
  int64_t count, steps;
};

struct Float32 {
  static __m512 add(__m512 sum, __m512i inputs, __m512i weights) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(inputs), _mm512_castsi512_ps(weights), sum);
  }
};

#ifdef __AVX512BF16__
struct BFloat16 {
  static __m512 add(__m512 sum, __m512i inputs, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)inputs, (__m512bh)weights);
  }
};
#endif

template <class Dtype>
struct Floats {
  static constexpr int sums = 24;  // that registers hold
  template <int R, int B>
  static void add(const Rows& rows, int64_t row, const int* weights, __m512 (&sums)[R][B]) {
    for (int64_t k = 0; k < rows.steps; k++) {
      __m512i read[B];
      for (int b = 0; b < B; b++) read[b] = _mm512_load_si512(weights + (b * rows.steps + k) * LANES);
      for (int r = 0; r < R; r++) {
        __m512i inputs = _mm512_set1_epi32(rows.words[(row + r) * rows.steps + k]);
        for (int b = 0; b < B; b++) sums[r][b] = Dtype::add(sums[r][b], inputs, read[b]);
      }
    }
  }
};

#ifdef __AVX512VNNI__
struct Int8 {  // weights are stored with an offset of 128, since one factor of the instruction is unsigned
  static constexpr int sums = 12;
  template <int R, int B>
  static void add(const Rows& rows, int64_t row, const int* weights, __m512 (&sums)[R][B]) {
    const int64_t groups = rows.steps * 4 / GROUP;
    for (int64_t g = 0; g < groups; g++) {
      __m512i whole[R][B];
      for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) whole[r][b] = _mm512_set1_epi32(rows.offsets[(row + r) * groups + g]);
      for (int64_t k = g * GROUP / 4; k < (g + 1) * GROUP / 4; k++) {
        __m512i read[B];
        for (int b = 0; b < B; b++) read[b] = _mm512_load_si512(weights + (b * rows.steps + k) * LANES);
        for (int r = 0; r < R; r++) {
          __m512i input = _mm512_set1_epi32(rows.words[(row + r) * rows.steps + k]);
          for (int b = 0; b < B; b++) whole[r][b] = _mm512_dpbusd_epi32(whole[r][b], read[b], input);
        }
      }
      for (int r = 0; r < R; r++) {
        __m512 scale = _mm512_set1_ps(rows.scales[(row + r) * groups + g]);
        for (int b = 0; b < B; b++) sums[r][b] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[r][b]), scale, sums[r][b]);
      }
    }
  }
};
#endif

struct Output {
  void* data;           // [count, size], in the dtype of the rows
  const float* scales;  // [size], of the weights, or null
  const float* bias;    // [size], or null
  int64_t size;
  bool bfloat16;

  void store(int64_t row, int64_t first, __m512 sum) const {
    const int64_t left = size - first;
    const __mmask16 mask = left >= LANES ? 0xffff : (1 << left) - 1;
    if (scales) sum = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, scales + first));
    if (bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias + first));
    const int64_t at = row * size + first;
#ifdef __AVX512BF16__
    if (bfloat16) return _mm256_mask_storeu_epi16((int16_t*)data + at, mask, (__m256i)_mm512_cvtneps_pbh(sum));
#endif
    _mm512_mask_storeu_ps((float*)data + at, mask, sum);
  }
};

template <class Kind, int R, int B>
void tile(const Rows& rows, int64_t row, const int* weights, int64_t block, const Output& output) {
  __m512 sums[R][B];
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) sums[r][b] = _mm512_setzero_ps();
  Kind::template add<R, B>(rows, row, weights + block * rows.steps * LANES, sums);
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) output.store(row + r, (block + b) * LANES, sums[r][b]);
}

// Multiply up to R rows with some of the blocks of 16 outputs.
template <class Kind, int R>
void tiles(const Rows& rows, int64_t row, const int* weights, int64_t block, int64_t end, const Output& output) {
  if constexpr (R > 1) {
    if (rows.count - row < R) return tiles<Kind, R - 1>(rows, row, weights, block, end, output);
  }
  constexpr int B = std::clamp(Kind::sums / R, 1, 4);
  for (; block + B <= end; block += B) tile<Kind, R, B>(rows, row, weights, block, output);
  for (; block < end; block++) tile<Kind, R, 1>(rows, row, weights, block, output);
}

template <class Kind>
void multiply(const Rows& rows, const Tensor& packed, const Output& output) {
  const auto weights = static_cast<const int*>(packed.const_data_ptr());
  const int64_t grain = std::max<int64_t>(1, SMALLEST / (rows.steps * LANES * 4));
  at::parallel_for(0, packed.size(0), grain, [&](int64_t begin, int64_t end) {
    constexpr int64_t few = 12;  // blocks whose weights stay in the cache while all rows are multiplied
    for (; begin < end; begin += few)
      for (int64_t row = 0; row < rows.count; row += MOST)
        tiles<Kind, MOST>(rows, row, weights, begin, std::min(begin + few, end), output);
  });
}

// Round a row to int8, with a scale for each group. Inputs that the last group lacks are 0.
void round_row(const float* row, int64_t inputs, int8_t* values, float* scales, int* offsets) {
  for (int64_t g = 0; g * GROUP < inputs; g++) {
    __m512 parts[2];
    for (int h = 0; h < 2; h++) {
      const int64_t first = g * GROUP + h * LANES, left = std::clamp<int64_t>(inputs - first, 0, LANES);
      parts[h] = _mm512_maskz_loadu_ps((1 << left) - 1, row + first);
    }
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(parts[0]), _mm512_abs_ps(parts[1])));
    const __m512 steps = _mm512_set1_ps(largest > 0 ? 127 / largest : 0);
    int total = 0;
    for (int h = 0; h < 2; h++) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(parts[h], steps));
      total += _mm512_reduce_add_epi32(whole);
      _mm_storeu_si128((__m128i*)(values + g * GROUP + h * LANES), _mm512_cvtepi32_epi8(whole));
    }
    scales[g] = largest / 127;
    offsets[g] = -128 * total;
  }
}

#ifdef __AVX512VNNI__
void multiply_int8(const Tensor& rows, int64_t count, const Tensor& packed, const Output& output) {
  const int64_t inputs = rows.size(-1), steps = packed.size(1), groups = steps * 4 / GROUP;
  const auto options = rows.options();
  auto words = at::empty({count, steps}, options.dtype(at::kInt)), offsets = at::empty({count, groups}, words.options());
  auto scales = at::empty({count, groups}, options);
  const auto data = rows.const_data_ptr<float>();
  const auto to = words.data_ptr<int>(), offset = offsets.data_ptr<int>();
  const auto scale = scales.data_ptr<float>();
  for (int64_t r = 0; r < count; r++)
    round_row(data + r * inputs, inputs, (int8_t*)(to + r * steps), scale + r * groups, offset + r * groups);
  multiply<Int8>({to, scale, offset, count, steps}, packed, output);
}
#endif

// See `specdec_core/models/fast/products.py`.
Tensor product(
    const Tensor& rows, const Tensor& packed, const std::optional<Tensor>& scales, const std::optional<Tensor>& bias,
    int64_t outputs) {
  const auto inputs = rows.contiguous();
  auto shape = inputs.sizes().vec();
  const int64_t count = inputs.numel() / shape.back();
  shape.back() = outputs;
  auto made = at::empty(shape, inputs.options());
  const Output output{
      made.data_ptr(), scales ? scales->const_data_ptr<float>() : nullptr, bias ? bias->const_data_ptr<float>() : nullptr,
      outputs, inputs.scalar_type() == at::kBFloat16};
  const Rows words{static_cast<const int*>(inputs.const_data_ptr()), nullptr, nullptr, count, packed.size(1)};
  switch (packed.scalar_type()) {
    case at::kFloat: multiply<Floats<Float32>>(words, packed, output); break;
#ifdef __AVX512BF16__
    case at::kBFloat16: multiply<Floats<BFloat16>>(words, packed, output); break;
#endif
#ifdef __AVX512VNNI__
    case at::kByte: multiply_int8(inputs, count, packed, output); break;
#endif
    default: TORCH_CHECK(false, "this CPU has no product of weights in ", packed.scalar_type());
  }
  return made;
}

}  // namespace

TORCH_LIBRARY(specdec, library) {
  library.def("product(Tensor rows, Tensor packed, Tensor? scales, Tensor? bias, int outputs) -> Tensor");
}

TORCH_LIBRARY_IMPL(specdec, CPU, library) { library.impl("product", &product); }
