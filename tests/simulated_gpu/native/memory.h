// Memory of the simulated device, pinned memory, and what is counted of both.
#pragma once
#include <torch/extension.h>
#include <atomic>
#include <mutex>
#include <set>

namespace simulated {

using at::Tensor;
using c10::Device;
using c10::DeviceType;
using c10::DispatchKey;

constexpr int DEVICES = 2;
constexpr int UNWRITTEN = 0x7e;  // fills fresh memory: never zero by luck, and no valid index
thread_local int current_device = 0;

Device device_at(int index) { return Device(DeviceType::CUDA, index < 0 ? current_device : index); }
bool on_device(const Tensor& t) { return t.defined() && t.is_cuda(); }

// ---- counts

std::mutex lock;
std::atomic<int64_t> launches{0}, allocations{0}, bytes{0};
PyObject* on_event = nullptr;  // called with (kind, operator), and never freed

void event(const char* kind, const std::string& name) {
  if (on_event == nullptr || !Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  py::reinterpret_borrow<py::object>(on_event)(kind, name);
}

// ---- memory

// What a storage of the device holds on to: the memory of a storage of the host.
struct Block {
  c10::Storage host;
  int64_t counted;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  bytes -= block->counted;
  delete block;
}

c10::DataPtr borrow(const c10::Storage& host, Device device, bool fresh) {
  const int64_t counted = fresh ? static_cast<int64_t>(host.nbytes()) : 0;
  allocations += fresh;
  bytes += counted;
  auto* block = new Block{host, counted};
  return {host.unsafeGetStorageImpl()->mutable_data(), block, &release, device};
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* host = c10::GetAllocator(DeviceType::CPU);
    c10::Storage storage(c10::Storage::use_byte_size_t(), size, host->allocate(size), host, true);
    if (size) std::memset(storage.unsafeGetStorageImpl()->mutable_data(), UNWRITTEN, size);
    return borrow(storage, device_at(-1), true);
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};
DeviceMemory device_memory;

std::set<const void*> pinned;
struct PinnedMemory final : c10::Allocator {
  static void unpin(void* memory) {
    { std::lock_guard<std::mutex> hold(lock); pinned.erase(memory); }
    std::free(memory);
  }
  c10::DataPtr allocate(size_t size) override {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size ? size : 64)) throw std::bad_alloc();
    std::lock_guard<std::mutex> hold(lock);
    pinned.insert(memory);
    return {memory, memory, &unpin, Device(DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};
PinnedMemory pinned_memory;

c10::Storage storage_of(const c10::Storage& host, Device device, c10::Allocator* allocator, bool fresh) {
  return c10::Storage(c10::Storage::use_byte_size_t(), host.nbytes(), borrow(host, device, fresh), allocator, true);
}

// ---- copies that arrive late

// With `late`, a non-blocking copy to the host arrives when the host next waits: until then its tensor holds
// UNWRITTEN. One from pinned memory must find that memory unchanged when the host next waits.
struct Copy { Tensor host, content; bool to_host; };
bool late = false;
std::vector<Copy> in_flight;

void arrive() {
  c10::InferenceMode inference;  // tensors of the host may be those of inference
  auto arrived = std::move(in_flight);
  in_flight.clear();
  for (auto& copy : arrived) {
    if (copy.to_host) copy.host.copy_(copy.content);
    else TORCH_CHECK(at::equal(copy.host, copy.content),
                     "pinned memory changed before its non-blocking copy to the device had ended");
  }
}

// Count a wait of the host for the device.
void wait(const char* kind, const std::string& name) {
  event(kind, name);
  if (!in_flight.empty()) arrive();
}

}  // namespace simulated
