// Operators: each runs on the CPU, on views of the device's tensors, if CUDA would take its arguments.
#pragma once
#include <torch/library.h>
#include <unordered_set>
#include "runtime.h"
#include "views.h"

namespace simulated {

using c10::IValue;
using torch::jit::Stack;
using Names = std::unordered_set<std::string>;

// ---- graphs: the operators of a capture, and what they overwrote

struct Node { c10::OperatorHandle op; Stack arguments, results; };
struct Graph {
  std::vector<Node> nodes;
  std::vector<std::pair<Tensor, Tensor>> overwritten;  // a tensor, and what it held
  std::vector<c10::Storage> made;
};
Graph* capturing = nullptr;

void refuse_in_capture(const std::string& what) {
  TORCH_CHECK(!capturing, "CUDA error: operation not permitted when stream is capturing (", what, ")");
}
void keep_for_undo(const Tensor& host) {
  if (host.defined()) capturing->overwritten.emplace_back(host, host.clone());
}

// ---- what CUDA refuses, and where it waits

// Kernels without a TensorIterator: a tensor of the CPU with no dimensions, which others take, fails too.
const Names NO_CPU_SCALAR = {
    "aten::gather", "aten::scatter", "aten::scatter_", "aten::scatter_add", "aten::scatter_add_", "aten::cat",
    "aten::index_select", "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_",
    "aten::index_fill_", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::embedding", "aten::sort",
    "aten::topk", "aten::take", "aten::searchsorted", "aten::bucketize", "aten::native_layer_norm",
    "aten::scatter_reduce", "aten::dot", "aten::mv"};
const Names WAITS_INSIDE = {
    "aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2", "aten::_unique", "aten::bincount",
    "aten::unique_consecutive", "aten::equal", "aten::multinomial", "aten::repeat_interleave"};
const Names NO_INTEGERS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::dot"};
const Names INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

bool is_mask(const Tensor& t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; }

// `x[mask] = number` fills, and does not look for where the mask is true.
bool fills(const std::string& name, const Stack& stack, size_t begin) {
  if (name == "aten::index") return true;  // looks by `nonzero`, which counts for itself
  const auto& value = stack[begin + 2];
  const auto indices = stack[begin + 1].toOptionalTensorList();
  return value.isTensor() && value.toTensor().is_cpu() && value.toTensor().numel() == 1 && indices.size() == 1;
}

// An argument of `name` that belongs to no index: raise what CUDA would.
void check_argument(const Tensor& t, const std::string& name, Device device) {
  if (!t.defined()) return;
  if (t.device() == device) {
    TORCH_CHECK(!NO_INTEGERS.count(name) || !at::isIntegralType(t.scalar_type(), true), "\"", name,
                "_cuda\" not implemented for '", t.scalar_type(), "'");
    return;
  }
  TORCH_CHECK(t.is_cpu() && t.dim() == 0 && !NO_CPU_SCALAR.count(name),
              "Expected all tensors to be on the same device, but found at least two devices, ", device.str(), " and ",
              t.device().str(), "! (when checking argument in method wrapper_", name, ")");
}

// An index: CUDA takes it from the CPU too, and waits for the copy. Return whether it waits for a mask.
bool check_index(const Tensor& t, const std::string& name, Device device, bool fill) {
  if (t.defined() && t.is_cpu()) {
    if (name == "aten::index") return false;  // torch has made a copy, which was counted, and passes the index too
    refuse_in_capture("index on the CPU");
    wait("upload", name + " (index on the CPU)");
    return false;
  }
  check_argument(t, name, device);
  return t.defined() && is_mask(t) && !fill;
}

// ---- the fallback

// Put `change(tensor)` in place of each tensor of a value; return whether it may hold any.
template <class F>
bool each_tensor(IValue& value, F change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    auto list = value.toTensorVector();
    for (auto& t : list) t = change(t);
    value = c10::List<Tensor>(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (std::optional<Tensor> t : value.toOptionalTensorList().vec())
      made.push_back(t ? std::optional<Tensor>(change(*t)) : std::nullopt);
    value = made;
  } else {
    return false;
  }
  return true;
}

Device device_of(const Stack& stack, size_t begin) {
  std::optional<Device> found, asked;
  for (size_t i = begin; i < stack.size(); ++i) {
    IValue value = stack[i];
    if (value.isDevice() && value.toDevice().is_cuda() && !asked) asked = device_at(value.toDevice().index());
    each_tensor(value, [&](const Tensor& t) {
      if (on_device(t) && !found) found = t.device();
      return t;
    });
  }
  return found ? *found : asked ? *asked : device_at(-1);
}

// Put what the CPU's kernel takes in place of the arguments.
void to_host(const c10::FunctionSchema& schema, Stack& stack, size_t begin, Device device, Views& views) {
  const auto& name = schema.name();
  const bool indexes = INDEXING.count(name) > 0, fill = indexes && fills(name, stack, begin);
  bool waits = WAITS_INSIDE.count(name) > 0;
  for (size_t i = begin; i < stack.size(); ++i) {
    auto& value = stack[i];
    const auto& argument = schema.arguments()[i - begin];
    const bool index = indexes && value.isOptionalTensorList();
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    const bool tensors = each_tensor(value, [&](const Tensor& t) {
      if (index) waits |= check_index(t, name, device, fill);
      else check_argument(t, name, device);
      auto host = views.to_host(t);
      if (capturing && written) keep_for_undo(host);
      return host;
    });
    if (tensors) continue;
    if (value.isDevice()) value = Device(DeviceType::CPU);
    else if (value.isBool() && argument.name() == "pin_memory") value = IValue();
    else if (value.isNone() && argument.name() == "generator") value = host_generator(default_generator(device.index()));
    else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
                  generator.device().str(), "'");
      value = host_generator(generator);
    }
  }
  if (!waits) return;
  refuse_in_capture(name);
  wait("fetch", name);
}

// Put tensors of the device in place of the results; return whether all are views, for which nothing is launched.
bool to_device(const c10::FunctionSchema& schema, Stack& stack, size_t first, Device device, const Views& views) {
  bool tensors = false, views_only = true;
  for (size_t i = first; i < stack.size(); ++i) {
    const auto& alias = schema.returns()[i - first].alias_info();
    tensors |= each_tensor(stack[i], [&](const Tensor& host) {
      bool fresh = false;
      auto made = views.to_device(host, device, fresh);
      if (fresh || (alias && alias->isWrite())) views_only = false;
      if (capturing && fresh) capturing->made.push_back(host.storage());
      return made;
    });
  }
  return tensors && views_only;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  const Device device = device_of(*stack, begin);
  Stack arguments;
  if (capturing) arguments.assign(stack->begin() + begin, stack->end());
  Views views;
  to_host(schema, *stack, begin, device, views);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(DispatchKey::CPU), stack);
  }
  views.follow();
  const size_t first = stack->size() - schema.returns().size();
  if (to_device(schema, *stack, first, device, views)) return;
  ++launches;
  if (capturing) capturing->nodes.push_back({op, arguments, Stack(stack->begin() + first, stack->end())});
}

}  // namespace simulated
