// One memory, two tensors: the device's, and a view of it as a tensor of the CPU.
#pragma once
#include "memory.h"

namespace simulated {

// Return a tensor of `storage` with the sizes of `like`; a view of `base` where there is one.
Tensor tensor_on(c10::Storage storage, DispatchKey key, const Tensor& like, const Tensor* base = nullptr) {
  auto made = base ? at::detail::make_tensor<c10::TensorImpl>(
                         c10::TensorImpl::VIEW, std::move(storage), base->key_set(), like.dtype())
                   : at::detail::make_tensor<c10::TensorImpl>(
                         std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

bool share(const Tensor& a, const Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// The tensors of one operator: each tensor of the device, and what the CPU sees of it.
class Views {
 public:
  Tensor to_host(const Tensor& t) {
    if (!on_device(t)) return t;
    const Pair* sharing = nullptr;
    for (auto& pair : pairs_) {
      if (pair.device.is_same(t)) return pair.host;
      if (share(pair.device, t)) sharing = &pair;
    }
    auto* host = c10::GetAllocator(DeviceType::CPU);
    auto made = tensor_on(sharing ? sharing->host.storage()
                                  : storage_of(t.storage(), Device(DeviceType::CPU), host, false),
                          DispatchKey::CPU, t);
    pairs_.push_back({t, made});
    return made;
  }

  // Return a result on the device: an argument, a view of one, or a new tensor (then `fresh` is set).
  Tensor to_device(const Tensor& t, Device device, bool& fresh) const {
    fresh = false;
    if (!t.defined()) return t;
    for (auto& pair : pairs_) if (pair.host.is_same(t)) return pair.device;
    for (auto& pair : pairs_)
      if (share(pair.host, t)) return tensor_on(pair.device.storage(), DispatchKey::CUDA, t, &pair.device);
    if (!t.is_cpu()) return t;
    fresh = true;
    return tensor_on(storage_of(t.storage(), device, &device_memory, true), DispatchKey::CUDA, t);
  }

  // Give the device's tensors the memory and sizes that the CPU's got, where an operator resized them.
  void follow() const {
    for (auto& pair : pairs_) {
      auto *device = pair.device.storage().unsafeGetStorageImpl(), *host = pair.host.storage().unsafeGetStorageImpl();
      if (device->data() != host->data() || device->nbytes() != host->nbytes()) {
        device->set_data_ptr_noswap(borrow(pair.host.storage(), pair.device.device(), true));
        device->set_nbytes(host->nbytes());
      }
      if (pair.device.sizes() != pair.host.sizes() || pair.device.strides() != pair.host.strides() ||
          pair.device.storage_offset() != pair.host.storage_offset())
        pair.device.unsafeGetTensorImpl()->set_sizes_and_strides(
            pair.host.sizes(), pair.host.strides(), pair.host.storage_offset());
    }
  }

 private:
  struct Pair { Tensor device, host; };
  std::vector<Pair> pairs_;
};

Tensor host_view(const Tensor& t) { return Views().to_host(t); }

}  // namespace simulated
