// What torch asks of a device's runtime: the current device, streams and events (all one), and generators.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include "memory.h"

namespace simulated {

int exchange_device(int index) {
  const int old = current_device;
  if (index >= 0) current_device = index;
  return old;
}

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  using Index = c10::DeviceIndex;
  Device exchangeDevice(Device d) const override { return device_at(exchange_device(d.index())); }
  Device getDevice() const override { return device_at(-1); }
  void setDevice(Device d) const override { exchange_device(d.index()); }
  void uncheckedSetDevice(Device d) const noexcept override { exchange_device(d.index()); }
  c10::Stream getStream(Device d) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(d.index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return getStream(stream.device()); }
  void record(void**, const c10::Stream&, Index, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  Index deviceCount() const noexcept override { return DEVICES; }
};

// A generator of the CPU under another name, and with other numbers for a seed.
struct Random final : c10::GeneratorImpl {
  static constexpr uint64_t OTHER = 0x5151;
  at::Generator host;
  explicit Random(int index)
      : GeneratorImpl(device_at(index), c10::DispatchKeySet(DispatchKey::CUDA)),
        host(at::detail::createCPUGenerator(c10::default_rng_seed_val ^ OTHER)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed ^ OTHER); }
  uint64_t current_seed() const override { return host.current_seed() ^ OTHER; }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.unsafeGetGeneratorImpl()->get_state();
  }
  Random* clone_impl() const override {
    auto* made = new Random(device().index());
    made->host = host.clone();
    return made;
  }
};

at::Generator& default_generator(int index) {
  static at::Generator made[DEVICES] = {at::make_generator<Random>(0), at::make_generator<Random>(1)};
  return made[index < 0 ? current_device : index];
}
at::Generator& host_generator(const at::Generator& generator) {
  return static_cast<Random*>(generator.unsafeGetGeneratorImpl())->host;
}

struct Hooks final : at::CUDAHooksInterface {
  using Index = c10::DeviceIndex;
  explicit Hooks(at::CUDAHooksArgs) {}
  bool isBuilt() const override { return true; }
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(Index) const override { return true; }
  Index deviceCount() const override { return DEVICES; }
  Index current_device() const override { return simulated::current_device; }
  Index getCurrentDevice() const override { return simulated::current_device; }
  const at::Generator& getDefaultGenerator(Index index) const override { return default_generator(index); }
  at::Generator getNewGenerator(Index index) const override {
    return at::make_generator<Random>(device_at(index).index());
  }
  Device getDeviceFromPtr(void*) const override { return device_at(0); }
  bool isPinnedPtr(const void* memory) const override {
    std::lock_guard<std::mutex> hold(lock);
    return pinned.count(memory) > 0;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
};

// torch made its hooks, which raise, when it was imported, and keeps them: give that object our methods.
void install_hooks() {
  auto* made = new Hooks(at::CUDAHooksArgs{});
  auto& kept = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(&kept) = *reinterpret_cast<void**>(made);
}

}  // namespace simulated
