// A kind of device for tests: its memory is the host's, and its kernels are the CPU's. PyTorch takes it for an
// accelerator: each of its devices has a worker thread and a ready queue of its own, allocations are told to the
// profiler as CUDA's are, copies between devices are tasks, and each node notes a stream.
#include <torch/extension.h>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <atomic>
#include <cstring>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, DEVICES> current_stream{}; // by device, as CUDA's
std::atomic<c10::StreamId> streams{0};
std::atomic<int64_t> events{0};

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : current_device;
}

// Devices and streams. A kernel has run when its call returns, so there is nothing to wait for.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Device getDevice() const override { return {KIND, current_device}; }
  void setDevice(c10::Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, index_of(device)), id);
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return stream(device, current_stream[index_of(device)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++streams); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const noexcept override {
    auto before = getStream(next.device());
    current_stream[index_of(next.device())] = next.id();
    return before;
  }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(++events);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// Each block has its size and device before it, and is told to the profiler.
struct Allocator final : c10::Allocator {
  struct Head {
    int64_t bytes;
    c10::DeviceIndex device;
  };
  static constexpr size_t BEFORE = 64; // keeps what follows aligned
  static_assert(sizeof(Head) <= BEFORE);
  static inline std::array<std::atomic<int64_t>, DEVICES> used{};

  static void tell(void* data, int64_t bytes, c10::DeviceIndex device) {
    int64_t now = used[device] += bytes;
    c10::reportMemoryUsageToProfiler(data, bytes, now, now, c10::Device(KIND, device));
  }
  static void release(void* data) {
    if (data == nullptr) return;
    char* base = static_cast<char*>(data) - BEFORE;
    Head head = *reinterpret_cast<Head*>(base);
    tell(data, -head.bytes, head.device);
    c10::free_cpu(base);
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(KIND, current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    char* base = static_cast<char*>(c10::alloc_cpu(bytes + BEFORE));
    new (base) Head{static_cast<int64_t>(bytes), current_device};
    tell(base + BEFORE, static_cast<int64_t>(bytes), current_device);
    return {base + BEFORE, base + BEFORE, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

c10::DispatchKeySet keys() { return c10::DispatchKeySet(c10::DispatchKey::PrivateUse1); }

at::Tensor empty(
    at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &allocator, keys(), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, keys(), c10::dtype_or_default(dtype));
}

// A tensor of the CPU over the same memory.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != KIND) return tensor;
  auto* start = static_cast<char*>(tensor.storage().mutable_data());
  auto* data = start == nullptr ? nullptr : start + tensor.storage_offset() * tensor.element_size();
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(data, tensor.sizes(), tensor.strides(), [keep = tensor.storage()](void*) {}, options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto source = on_host(from);
  if (from.is_conj() != to.is_conj()) source = source.conj();
  on_host(to).copy_(source);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return at::_local_scalar_dense(on_host(tensor)); }

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(tensor, storage, offset, sizes, strides);
}

// Convolutions look for a device's backend by name, and so don't come to the fallback below.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups) {
  auto its_bias = bias && bias->defined() ? std::optional(on_host(*bias)) : std::nullopt;
  auto output = at::convolution(
      on_host(input), on_host(weight), its_bias, stride, padding, dilation, transposed, output_padding, groups);
  return output.to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  auto found = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::OptionalIntArrayRef(bias), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(std::get<0>(found)), back(std::get<1>(found)), back(std::get<2>(found))};
}

void on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", at::native::resize_);
  library.impl("set_", at::native::set_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("register_hooks", [] {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
  });
  module.def("device_count", [] { return static_cast<int>(DEVICES); });
  module.def("current_device", [] { return static_cast<int>(current_device); });
  module.def("set_device", [](int device) { current_device = static_cast<c10::DeviceIndex>(device); });
  module.def("memory_allocated", [](int device) { return Allocator::used.at(device).load(); });
}
