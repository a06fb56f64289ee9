// What a pass over a few tokens spends its time on, for a CPU with AVX-512: products of rows with packed weights, and
// attention. What they return for a token does not depend on the other tokens of the pass.
//
// Weights [out, in] are packed as [out / 16, in / n, 16, n], where n inputs fill 32 bits: 1 of float32, 2 of bfloat16,
// or 4 of int8. One load has these inputs for 16 outputs, and a product reads its weights once and in order. A sum
// adds the same terms in the same order however many rows there are, so that no row changes the outputs of another.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/cpu/vec/vec.h>
#include <ATen/ops/empty.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <vector>

namespace {

using at::Tensor;

constexpr int64_t LANES = 16;
constexpr int64_t MOST = 8;          // rows of a tile, and queries that read keys together
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
constexpr bool HAS_BFLOAT16 = true;  // the compiler knows its instructions
struct BFloat16 {
  static __m512 add(__m512 sum, __m512i inputs, __m512i weights) {
    return _mm512_dpbf16_ps(sum, (__m512bh)inputs, (__m512bh)weights);
  }
};
#else
constexpr bool HAS_BFLOAT16 = false;
#endif

template <class Dtype>
struct Floats {
  static constexpr int sums = 24;  // that registers hold
  template <int R, int B>
  static void add(const Rows& rows, int64_t row, const int* const (&weights)[B], __m512 (&sums)[R][B]) {
    for (int64_t k = 0; k < rows.steps; k++) {
      __m512i read[B];
      for (int b = 0; b < B; b++) read[b] = _mm512_load_si512(weights[b] + k * LANES);
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
  static void add(const Rows& rows, int64_t row, const int* const (&weights)[B], __m512 (&sums)[R][B]) {
    const int64_t groups = rows.steps * 4 / GROUP;
    for (int64_t g = 0; g < groups; g++) {
      __m512i whole[R][B];
      for (int r = 0; r < R; r++)
        for (int b = 0; b < B; b++) whole[r][b] = _mm512_set1_epi32(rows.offsets[(row + r) * groups + g]);
      for (int64_t k = g * GROUP / 4; k < (g + 1) * GROUP / 4; k++) {
        __m512i read[B];
        for (int b = 0; b < B; b++) read[b] = _mm512_load_si512(weights[b] + k * LANES);
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
  const float* scales;  // of the weights of each output, or null
  const float* bias;    // of each output, or null
  int64_t size;
  bool bfloat16;
  bool gated = false;  // the weights make twice as many outputs: gates, which activate, and what they are multiplied by

  // Return a sum of weights that make the outputs from `first` on, with scales and biases.
  __m512 finish(__m512 sum, int64_t first) const {
    const __mmask16 mask = within(size * (gated ? 2 : 1) - first);
    if (scales) sum = _mm512_mul_ps(sum, _mm512_maskz_loadu_ps(mask, scales + first));
    if (bias) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, bias + first));
    return sum;
  }

  void store(int64_t row, int64_t first, __m512 value) const {
    const __mmask16 mask = within(size - first);
    const int64_t at = row * size + first;
#ifdef __AVX512BF16__
    if (bfloat16) return _mm256_mask_storeu_epi16((int16_t*)data + at, mask, (__m256i)_mm512_cvtneps_pbh(value));
#endif
    _mm512_mask_storeu_ps((float*)data + at, mask, value);
  }

  static __mmask16 within(int64_t left) { return left >= LANES ? 0xffff : (1 << left) - 1; }
};

__m512 silu(__m512 gate) {
  const auto less = at::vec::Vectorized<float>(_mm512_sub_ps(_mm512_setzero_ps(), gate)).exp_u20();
  return _mm512_div_ps(gate, _mm512_add_ps(less, _mm512_set1_ps(1)));
}

// Multiply R rows with B blocks of 16 outputs or, if G is 2, with B gates and the B blocks that they are for.
template <class Kind, int R, int B, int G>
void tile(const Rows& rows, int64_t row, const int* weights, int64_t block, const Output& output) {
  __m512 sums[R][B * G];
  const int* from[B * G];
  for (int b = 0; b < B * G; b++) {
    from[b] = weights + (block + b % B + b / B * (output.size / LANES)) * rows.steps * LANES;
    for (int r = 0; r < R; r++) sums[r][b] = _mm512_setzero_ps();
  }
  Kind::template add<R, B * G>(rows, row, from, sums);
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) {
      const int64_t first = (block + b) * LANES;
      __m512 value = output.finish(sums[r][b], first);
      if constexpr (G == 2) value = _mm512_mul_ps(silu(value), output.finish(sums[r][B + b], output.size + first));
      output.store(row + r, first, value);
    }
}

// Multiply up to R rows with some of the blocks.
template <class Kind, int R, int G>
void tiles(const Rows& rows, int64_t row, const int* weights, int64_t block, int64_t end, const Output& output) {
  if constexpr (R > 1) {
    if (rows.count - row < R) return tiles<Kind, R - 1, G>(rows, row, weights, block, end, output);
  }
  constexpr int B = std::clamp(Kind::sums / R / G, 1, 4 / G);
  for (; block + B <= end; block += B) tile<Kind, R, B, G>(rows, row, weights, block, output);
  for (; block < end; block++) tile<Kind, R, 1, G>(rows, row, weights, block, output);
}

template <class Kind, int G>
void multiply_blocks(const Rows& rows, const Tensor& packed, const Output& output) {
  const auto weights = static_cast<const int*>(packed.const_data_ptr());
  const int64_t blocks = packed.size(0) / G, bytes = blocks * G * rows.steps * LANES * 4;
  const int64_t threads = std::clamp<int64_t>(bytes / SMALLEST, 1, at::get_num_threads());
  // Blocks whose weights stay in the cache while all rows are multiplied. Threads take them as they get ready.
  const int64_t few = std::clamp<int64_t>(blocks / threads / 4, 4 / G, 12 / G);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t begin; (begin = next.fetch_add(few)) < blocks;)
      for (int64_t row = 0; row < rows.count; row += MOST)
        tiles<Kind, MOST, G>(rows, row, weights, begin, std::min(begin + few, blocks), output);
  });
}

template <class Kind>
void multiply(const Rows& rows, const Tensor& packed, const Output& output) {
  (output.gated ? multiply_blocks<Kind, 2> : multiply_blocks<Kind, 1>)(rows, packed, output);
}

// Round a row to int8, with a scale for each group, which is NaN where an input is. Inputs that the last group lacks
// are 0.
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
    const bool unordered = _mm512_cmp_ps_mask(parts[0], parts[1], _CMP_UNORD_Q);  // a maximum may leave NaN out
    scales[g] = unordered ? std::numeric_limits<float>::quiet_NaN() : largest / 127;
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
template <bool gated>
Tensor product(
    const Tensor& rows, const Tensor& packed, const std::optional<Tensor>& scales, const std::optional<Tensor>& bias,
    int64_t width, int64_t outputs) {
  const auto dtype = packed.scalar_type() == at::kByte ? at::kFloat : packed.scalar_type();
  TORCH_CHECK(
      rows.size(-1) == width && rows.scalar_type() == dtype, "packed weights multiply rows [..., ", width, "] in ", dtype,
      ", not ", rows.sizes(), " in ", rows.scalar_type());
  const auto inputs = rows.contiguous();
  auto shape = inputs.sizes().vec();
  const int64_t count = inputs.numel() / width;
  shape.back() = outputs;
  auto made = at::empty(shape, inputs.options());
  const Output output{
      made.data_ptr(), scales ? scales->const_data_ptr<float>() : nullptr, bias ? bias->const_data_ptr<float>() : nullptr,
      outputs, inputs.scalar_type() == at::kBFloat16, gated};
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

// Attention of a head. Rows of keys, values and queries are `stride` apart.
template <class T>
struct Part {
  const T* data;
  int64_t stride;

  __m512 read(int64_t row, int64_t at) const {
    const T* from = data + row * stride + at;
    if constexpr (std::is_same_v<T, float>) return _mm512_loadu_ps(from);
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};

struct Query {
  int64_t to;           // its row of the output
  const bool* visible;  // which keys it sees, and
  const float* added;   // what is added to their scores; both null if it sees all

  float apply(float score, int64_t key) const {
    if (added) return score + added[key];
    return !visible || visible[key] ? score : -std::numeric_limits<float>::infinity();
  }
};

// Attend with R queries, `scaled`; `scores` has room for R times the keys, rounded up to LANES.
template <int R, class T>
void attend(
    const Query* queries, const float* scaled, int64_t size, const Part<T>& keys, const Part<T>& values, int64_t count,
    float* scores, const Output& output) {
  const int64_t padded = (count + LANES - 1) / LANES * LANES;
  for (int64_t k = 0; k < count; k++) {
    __m512 sums[R];
    for (int r = 0; r < R; r++) sums[r] = _mm512_setzero_ps();
    for (int64_t d = 0; d < size; d += LANES) {
      const __m512 key = keys.read(k, d);
      for (int r = 0; r < R; r++) sums[r] = _mm512_fmadd_ps(_mm512_loadu_ps(scaled + r * size + d), key, sums[r]);
    }
    for (int r = 0; r < R; r++) scores[r * padded + k] = queries[r].apply(_mm512_reduce_add_ps(sums[r]), k);
  }
  __m512 shares[R];
  for (int r = 0; r < R; r++) {
    float* row = scores + r * padded;
    std::fill(row + count, row + padded, -std::numeric_limits<float>::infinity());
    __m512 largest = _mm512_set1_ps(std::numeric_limits<float>::lowest()), total = _mm512_setzero_ps();
    for (int64_t k = 0; k < padded; k += LANES) largest = _mm512_max_ps(largest, _mm512_loadu_ps(row + k));
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (int64_t k = 0; k < padded; k += LANES) {
      const __m512 weight = at::vec::Vectorized<float>(_mm512_sub_ps(_mm512_loadu_ps(row + k), largest)).exp_u20();
      total = _mm512_add_ps(total, weight);
      _mm512_storeu_ps(row + k, weight);
    }
    const float sum = _mm512_reduce_add_ps(total);
    shares[r] = _mm512_set1_ps(sum > 0 ? 1 / sum : 0);  // a query that sees no key, as padding, returns 0
  }
  for (int64_t d = 0; d < output.size; d += LANES) {
    __m512 sums[R];
    for (int r = 0; r < R; r++) sums[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < count; k++) {
      const __m512 value = values.read(k, d);
      for (int r = 0; r < R; r++) sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(scores[r * padded + k]), value, sums[r]);
    }
    for (int r = 0; r < R; r++) output.store(queries[r].to, d, _mm512_mul_ps(sums[r], shares[r]));
  }
}

template <int R, class T, class... Arguments>
void attend_up_to(int64_t rows, const Arguments&... arguments) {
  if constexpr (R > 1) {
    if (rows < R) return attend_up_to<R - 1, T>(rows, arguments...);
  }
  attend<R, T>(arguments...);
}

template <class T>
void attend_all(
    const Tensor& queries, const Tensor& keys, const Tensor& values, const std::optional<Tensor>& mask, double scale,
    const Output& output) {
  const int64_t heads = queries.size(1), width = queries.size(2), size = queries.size(3), count = keys.size(2);
  const int64_t groups = keys.size(1), all = heads / groups * width, blocks = (all + MOST - 1) / MOST;
  const int64_t grain = 65536 / std::clamp<int64_t>(std::min(all, MOST) * count * size, 1, 65536);
  const auto part = [](const Tensor& of, int64_t batch, int64_t head) {
    return Part<T>{of.const_data_ptr<T>() + batch * of.stride(0) + head * of.stride(1), of.stride(2)};
  };
  at::parallel_for(0, queries.size(0) * groups * blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(MOST * (count + LANES)), scaled(MOST * size);
    for (; begin < end; begin++) {  // queries of all heads that share keys and values
      const int64_t first = begin % blocks * MOST, group = begin / blocks % groups, batch = begin / blocks / groups;
      const int64_t rows = std::min(MOST, all - first);
      Query some[MOST] = {};
      for (int64_t r = 0; r < rows; r++) {
        const int64_t head = group * (heads / groups) + (first + r) / width, at = (first + r) % width;
        const auto query = part(queries, batch, head);
        for (int64_t d = 0; d < size; d += LANES)
          _mm512_storeu_ps(&scaled[r * size + d], _mm512_mul_ps(query.read(at, d), _mm512_set1_ps(scale)));
        some[r].to = (batch * width + at) * heads + head;
        if (!mask) continue;
        const int64_t from = batch * mask->stride(0) + head * mask->stride(1) + at * mask->stride(2);
        if (mask->scalar_type() == at::kBool)
          some[r].visible = mask->const_data_ptr<bool>() + from;
        else
          some[r].added = mask->const_data_ptr<float>() + from;
      }
      attend_up_to<MOST, T>(
          rows, some, scaled.data(), size, part(keys, batch, group), part(values, batch, group), count, scores.data(),
          output);
    }
  });
}

// See `specdec_core/models/fast/attention.py`.
Tensor attention(
    const Tensor& queries, const Tensor& keys, const Tensor& values, const std::optional<Tensor>& mask, double scale) {
  const auto takes = [](const Tensor& of) { return of.dim() == 4 && of.size(3) % LANES == 0 && of.stride(3) == 1; };
  TORCH_CHECK(
      takes(queries) && takes(keys) && takes(values) && queries.size(0) == keys.size(0) &&
          queries.size(3) == keys.size(3) && keys.sizes().slice(0, 3) == values.sizes().slice(0, 3) &&
          keys.size(1) > 0 && queries.size(1) % keys.size(1) == 0,
      "attention takes queries [B, H, T, D], keys [B, G, S, D] and values [B, G, S, D'], where G divides H, and 16 divides "
      "D and D', not ", queries.sizes(), ", ", keys.sizes(), " and ", values.sizes());
  const int64_t heads = queries.size(1), size = values.size(3);
  auto made = at::empty({queries.size(0), queries.size(2), heads, size}, queries.options());
  const Output output{made.data_ptr(), nullptr, nullptr, size, queries.scalar_type() == at::kBFloat16};
  std::optional<Tensor> each;
  if (mask) {
    const auto plain = (mask->scalar_type() == at::kBool ? *mask : mask->to(at::kFloat)).contiguous();
    each = plain.expand({queries.size(0), heads, queries.size(2), keys.size(2)});
    if (each->stride(3) != 1) each = each->contiguous();  // one value for all keys
  }
  if (HAS_BFLOAT16 && output.bfloat16)
    attend_all<at::BFloat16>(queries, keys, values, each, scale, output);
  else
    attend_all<float>(queries, keys, values, each, scale, output);  // which raises an error for any other dtype
  return made;
}

}  // namespace

extern "C" int has_bfloat16() { return HAS_BFLOAT16; }

TORCH_LIBRARY(specdec, library) {
  library.def("product(Tensor rows, Tensor packed, Tensor? scales, Tensor? bias, int inputs, int outputs) -> Tensor");
  library.def("gated_product(Tensor rows, Tensor packed, Tensor? scales, Tensor? bias, int inputs, int outputs) -> Tensor");
  library.def("attention(Tensor queries, Tensor keys, Tensor values, Tensor? mask, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(specdec, CPU, library) {
  library.impl("product", &product<false>);
  library.impl("gated_product", &product<true>);
  library.impl("attention", &attention);
}
