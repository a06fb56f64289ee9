// A simulated CUDA device: its memory is the host's, and each operator runs on the CPU. See README.md.
#include <ATen/ops/set_native.h>
#include "kernels.h"

namespace at { REGISTER_ALLOCATOR(DeviceType::CUDA, &simulated::device_memory); }
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, simulated::Guard); }

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", simulated::empty);
  m.impl("empty_strided", simulated::empty_strided);
  m.impl("copy_", simulated::copy_);
  m.impl("_local_scalar_dense", simulated::local_scalar_dense);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  m.impl("_scaled_dot_product_fused_attention_overrideable", simulated::attend);
}

namespace simulated {

void begin_capture(Graph& graph, const py::args&, const py::kwargs&) {
  TORCH_CHECK(!capturing, "already capturing");
  graph.nodes.clear();
  capturing = &graph;
}

// A GPU computes nothing while it captures: put back what was there, and fill what was made.
void end_capture(Graph& graph) {
  capturing = nullptr;
  c10::InferenceMode inference;
  for (auto it = graph.overwritten.rbegin(); it != graph.overwritten.rend(); ++it)
    if (it->first.sizes() == it->second.sizes()) it->first.copy_(it->second);
  for (auto& made : graph.made)
    std::memset(made.unsafeGetStorageImpl()->mutable_data(), UNWRITTEN, made.nbytes());
  graph.overwritten.clear();
  graph.made.clear();
}

void put(const IValue& from, const IValue& to) {
  if (from.isTensorList()) {
    const auto sources = from.toTensorVector(), targets = to.toTensorVector();
    for (size_t i = 0; i < sources.size(); ++i) put(sources[i], targets[i]);
  } else if (from.isTensor() && to.toTensor().defined() && to.toTensor().data_ptr() != from.toTensor().data_ptr()) {
    host_view(to.toTensor()).copy_(host_view(from.toTensor()));
  }
}

// One launch, whatever is recorded.
void replay(Graph& graph) {
  event("replay", "CUDAGraph.replay");
  py::gil_scoped_release release;
  const int64_t launched = launches, allocated = allocations;
  c10::InferenceMode inference;
  for (auto& node : graph.nodes) {
    Stack stack(node.arguments);
    if (node.op.schema().name() == "aten::copy_") {
      auto to = stack[0].toTensor();
      copy_(to, stack[1].toTensor(), false);
      continue;
    }
    fallback(node.op, &stack);
    for (size_t i = 0; i < stack.size(); ++i) put(stack[i], node.results[i]);
  }
  launches = launched + 1;
  allocations = allocated;
}

}  // namespace simulated

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace simulated;
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
  install_hooks();
  m.def("on_event", [](py::object f) { on_event = f.release().ptr(); });
  m.def("launches", [] { return launches.load(); });
  m.def("allocations", [] { return allocations.load(); });
  m.def("bytes", [] { return bytes.load(); });
  m.def("finished", [] { return in_flight.empty(); });
  m.def("wait", [](const std::string& name) { wait("synchronize", name); });
  m.def("set_late", [](bool on) { arrive(); late = on; });
  m.def("device_count", [] { return DEVICES; });
  m.def("current_device", [] { return simulated::current_device; });
  m.def("exchange_device", &exchange_device);
  m.def("default_generator", &default_generator);
  m.def("is_capturing", [] { return capturing != nullptr; });
  py::class_<Graph>(m, "CUDAGraph")
      .def(py::init<>())
      .def("capture_begin", &begin_capture)
      .def("capture_end", &end_capture)
      .def("replay", &replay);
}
