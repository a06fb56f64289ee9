// Operators with kernels of their own: new tensors, copies, values read by the host, and attention.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/native/transformers/attention.h>
#include "operators.h"

namespace simulated {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<Device>;
using Pin = std::optional<bool>;

Tensor empty(c10::IntArrayRef size, Dtype dtype, Layout, Where device, Pin, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(DispatchKey::CUDA);
  return at::detail::empty_generic(size, &device_memory, keys, c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Dtype dtype, Layout, Where device, Pin) {
  c10::OptionalDeviceGuard guard(device);
  const c10::DispatchKeySet keys(DispatchKey::CUDA);
  return at::detail::empty_strided_generic(size, stride, &device_memory, keys, c10::dtype_or_default(dtype));
}

// ---- copies

// A copy between host and device. Return whether it is done: with `late`, a non-blocking one to the host is not.
bool cross(const Tensor& from, const Tensor& to, const Tensor& host_from, const Tensor& host_to, bool non_blocking) {
  const bool up = on_device(to);
  refuse_in_capture(up ? "copy from the host" : "copy to the host");
  const bool pinned_host = (up ? from : to).is_pinned();
  if (!non_blocking) {
    wait(up ? "upload" : "fetch", "copy_");
    return false;
  }
  event(up ? (pinned_host ? "upload_pinned" : "upload_pageable") : "fetch_later", "copy_");
  if (!late || !pinned_host) return false;
  if (up) {
    in_flight.push_back({from, from.clone(), false});
    return false;
  }
  auto content = at::empty_like(host_to);
  content.copy_(host_from);
  std::memset(host_to.mutable_data_ptr(), host_to.scalar_type() == at::kBool ? 0 : UNWRITTEN, host_to.nbytes());
  in_flight.push_back({host_to, content, true});
  return true;
}

Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  if (self.is_same(from)) return self;
  at::AutoDispatchBelowADInplaceOrView below;
  Views views;
  auto to = views.to_host(self), source = views.to_host(from);
  ++launches;
  if (on_device(self) != on_device(from) && from.numel() && cross(from, self, source, to, non_blocking)) return self;
  if (capturing) {
    keep_for_undo(to);
    capturing->nodes.push_back({op, {self, from, false}, {}});
  }
  to.copy_(source);
  return self;
}
at::Scalar local_scalar_dense(const Tensor& self) {
  refuse_in_capture("item");
  wait("fetch", "item");
  return at::_local_scalar_dense(host_view(self));
}

// ---- attention: the CPU's fused kernel where the CPU would take it, so that sums are in the same order, and without gradients

using Mask = std::optional<Tensor>;
using Scale = std::optional<double>;
using Attended = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

int64_t choose_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, double dropout,
                         bool causal, Scale scale, bool grouped) {
  const bool trained = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  Views views;
  Mask host;
  if (mask && mask->defined()) host = views.to_host(*mask);
  const auto chosen = at::_fused_sdp_choice(views.to_host(q), views.to_host(k), views.to_host(v), host, dropout,
                                            causal, scale, grouped);
  const bool fused = !trained && chosen == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& bias, double dropout, bool causal, bool,
                Scale scale) {
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, bias, scale);
  const auto unused = at::empty({0}, q.options().dtype(at::kLong));
  return {out, sums, unused, unused, q.sym_size(2), k.sym_size(2), unused, unused, unused};
}

}  // namespace simulated
