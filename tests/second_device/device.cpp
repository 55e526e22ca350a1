// A kind of device for tests: its memory is the host's, and its kernels are the CPU's. PyTorch takes it for an
// accelerator: each of its devices has a worker thread and a ready queue of its own, allocations are told to the
// profiler as CUDA's are, copies between devices are tasks, and each node notes a stream. What is asked of streams,
// events and blocks is written down, so that it can be told whether kernels of real streams would have raced.
// Not torch/extension.h, whose C++ frontend takes a third of the compiler's time.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

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
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_function.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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

using Blocks = std::vector<int64_t>; // by address

// What was asked for, in order: a kernel with what it reads and writes, an event, a block of memory.
struct Line {
  std::string what;
  int device;
  c10::StreamId stream;
  int64_t event;
  Blocks reads, writes;
};
std::atomic<bool> writes_down{false};
std::mutex log_mutex;
std::vector<Line> lines;

void write_down(const std::string& what, const c10::Stream& on, int64_t event = 0, Blocks reads = {}, Blocks writes = {}) {
  if (!writes_down) return;
  std::lock_guard<std::mutex> lock(log_mutex);
  lines.push_back({what, on.device().index(), on.id(), event, std::move(reads), std::move(writes)});
}

int64_t address(const void* data) { return reinterpret_cast<int64_t>(data); }

void add_block(const at::Tensor& tensor, Blocks& to) {
  if (!tensor.defined() || tensor.device().type() != KIND || !tensor.has_storage()) return;
  if (auto block = address(tensor.storage().data())) to.push_back(block);
}

void add_blocks(const c10::IValue& value, Blocks& to) {
  if (value.isTensor()) add_block(value.toTensor(), to);
  if (value.isTensorList())
    for (const at::Tensor& tensor : value.toTensorVector()) add_block(tensor, to);
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
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    auto number = ++events;
    *event = reinterpret_cast<void*>(number);
    write_down("record", on, number);
  }
  void block(void* event, const c10::Stream& on) const override { write_down("block", on, address(event)); }
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  void synchronizeEvent(void*) const override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& of) const override { write_down("wait for stream", of); }
  void synchronizeDevice(c10::DeviceIndex of) const override {
    write_down("wait for device", stream(c10::Device(KIND, of), 0));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    write_down("record_stream", on, 0, {}, {address(data.get())});
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

c10::Stream stream_now(c10::Device device) { return Guard().getStream(device); }

// Each block has its size and device before it, and is told to the profiler.
struct Allocator final : c10::Allocator {
  struct Head {
    int64_t bytes;
    c10::DeviceIndex device;
  };
  static constexpr size_t BEFORE = 64; // keeps what follows aligned
  static_assert(sizeof(Head) <= BEFORE);
  static inline std::array<std::atomic<int64_t>, DEVICES> used{};
  static inline std::array<std::atomic<int64_t>, DEVICES> limit{}; // bytes; 0: as much as the host has

  static void tell(void* data, int64_t bytes, c10::DeviceIndex device) {
    int64_t now = used[device] += bytes;
    c10::reportMemoryUsageToProfiler(data, bytes, now, now, c10::Device(KIND, device));
  }
  static void release(void* data) {
    if (data == nullptr) return;
    char* base = static_cast<char*>(data) - BEFORE;
    Head head = *reinterpret_cast<Head*>(base);
    tell(data, -head.bytes, head.device);
    write_down("free", stream_now(c10::Device(KIND, head.device)), 0, {}, {address(data)});
    c10::free_cpu(base);
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(KIND, current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    int64_t most = limit[current_device];
    TORCH_CHECK_WITH(
        OutOfMemoryError, most == 0 || used[current_device] + static_cast<int64_t>(bytes) <= most, device,
        " is out of memory: tried to allocate ", bytes, " bytes of ", most, ", of which ",
        used[current_device].load(), " are in use");
    char* base = static_cast<char*>(c10::alloc_cpu(bytes + BEFORE));
    new (base) Head{static_cast<int64_t>(bytes), current_device};
    tell(base + BEFORE, static_cast<int64_t>(bytes), current_device);
    write_down("allocate", stream_now(device), 0, {}, {address(base + BEFORE)});
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

// Meanwhile copies are part of a kernel, which is written down as a whole.
struct InKernel {
  static inline thread_local int depth = 0;
  InKernel() { ++depth; }
  ~InKernel() { --depth; }
};

// As CUDA's copies: on the source's stream, which waits for the target's, and that for it; the host waits for its own.
void write_down_copy(const at::Tensor& from, const at::Tensor& to, bool without_waiting) {
  if (!writes_down || InKernel::depth > 0) return;
  Blocks reads, writes;
  add_block(from, reads);
  add_block(to, writes);
  auto here = stream_now(from.device().type() == KIND ? from.device() : to.device());
  if (from.device() == to.device()) {
    write_down("copy", here, 0, reads, writes);
  } else if (from.device().type() == to.device().type()) {
    auto there = stream_now(to.device());
    auto wait = [](const c10::Stream& who, const c10::Stream& whom) {
      auto number = ++events;
      write_down("record", whom, number);
      write_down("block", who, number);
    };
    wait(here, there);
    write_down("copy", here, 0, reads, writes);
    wait(there, here);
  } else {
    write_down("copy", here, 0, reads, writes);
    if (!without_waiting) write_down("wait for stream", here);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool without_waiting) {
  auto source = on_host(from);
  if (from.is_conj() != to.is_conj()) source = source.conj();
  on_host(to).copy_(source);
  write_down_copy(from, to, without_waiting);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  Blocks reads;
  add_block(tensor, reads);
  write_down("item", stream_now(tensor.device()), 0, reads);
  Guard().synchronizeStream(stream_now(tensor.device()));
  return at::_local_scalar_dense(on_host(tensor));
}

at::Tensor& set_storage(
    at::Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::set_storage_cpu_(tensor, storage, offset, sizes, strides);
}

void write_down_kernel(const std::string& what, at::TensorList read, at::TensorList written) {
  Blocks reads, writes;
  for (const auto& tensor : read) add_block(tensor, reads);
  for (const auto& tensor : written) add_block(tensor, writes);
  write_down(what, stream_now(read.front().device()), 0, reads, writes);
}

// Convolutions look for a device's backend by name, and so don't come to the fallback below.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups) {
  InKernel kernel;
  auto its_bias = bias && bias->defined() ? std::optional(on_host(*bias)) : std::nullopt;
  auto output = at::convolution(
      on_host(input), on_host(weight), its_bias, stride, padding, dilation, transposed, output_padding, groups);
  auto found = output.to(input.device());
  write_down_kernel("convolution", {input, weight, bias.value_or(at::Tensor())}, {found});
  return found;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  InKernel kernel;
  std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  auto found = at::convolution_backward(
      on_host(gradient), on_host(input), on_host(weight), at::OptionalIntArrayRef(bias), stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  std::tuple gradients{back(std::get<0>(found)), back(std::get<1>(found)), back(std::get<2>(found))};
  auto& [of_input, of_weight, of_bias] = gradients;
  write_down_kernel("convolution_backward", {gradient, input, weight}, {of_input, of_weight, of_bias});
  return gradients;
}

// The same as the CPU's cells, of which torch asks other devices to make one kernel.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input, const at::Tensor& hidden, const at::Tensor& cell, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& hidden_bias) {
  auto gates = input + hidden;
  if (bias && bias->defined()) gates = gates + *bias + *hidden_bias;
  auto parts = gates.chunk(4, 1); // input, forget, cell, output
  auto next = parts[1].sigmoid() * cell + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * next.tanh(), next, at::empty({0}, gates.options())};
}

void on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  Blocks reads, writes;
  const auto& schema = operation.schema();
  const auto& arguments = schema.arguments();
  auto given = stack->end() - static_cast<ptrdiff_t>(arguments.size());
  for (const auto& argument : arguments) {
    bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    add_blocks(*given++, written ? writes : reads);
  }
  {
    InKernel kernel;
    at::native::cpu_fallback(operation, stack);
  }
  for (auto output = stack->end() - static_cast<ptrdiff_t>(schema.returns().size()); output != stack->end(); ++output)
    add_blocks(*output, writes);
  write_down(schema.name(), stream_now(c10::Device(KIND, current_device)), 0, reads, writes);
}

// Sums, which the engine makes of gradients that meet, take nothing on the CPU.
at::Tensor& add_in_place(at::Tensor& tensor, const at::Tensor& other, const at::Scalar& alpha) {
  InKernel kernel;
  on_host(tensor).add_(on_host(other), alpha);
  write_down_kernel("aten::add_", {tensor, other}, {tensor});
  return tensor;
}

at::Tensor add(const at::Tensor& one, const at::Tensor& other, const at::Scalar& alpha) {
  if (!one.sizes().equals(other.sizes()) || one.dtype() != other.dtype() || one.device() != other.device())
    return at::native::call_fallback_fn<&on_cpu, at::_ops::add_Tensor>::call(one, other, alpha);
  InKernel kernel;
  auto sum = at::empty_like(one);
  auto its = on_host(sum);
  at::add_out(its, on_host(one), on_host(other), alpha);
  write_down_kernel("aten::add", {one, other}, {sum});
  return sum;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { library.impl("_thnn_fused_lstm_cell", lstm_cell); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("add.Tensor", add);
  library.impl("add_.Tensor", add_in_place);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("resize_", at::native::resize_);
  library.impl("set_", at::native::set_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("record_stream", [](at::Tensor& tensor, c10::Stream on) {
    Guard().recordDataPtrOnStream(tensor.storage().data_ptr(), on);
  });
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
}

// The Python object of a custom Function's node refers to it weakly in torch 2.11, and owns it in later versions.
template <class Node>
auto held(const std::weak_ptr<Node>& node) { return node.lock(); }
template <class Pointer>
const Pointer& held(const Pointer& node) { return node; }

// The stream of a node, which Python does not show.
pybind11::object stream_of(pybind11::object node) {
  using namespace torch::autograd;
  auto* its = node.ptr();
  auto stream = THPFunction_Check(its) ? held(reinterpret_cast<THPFunction*>(its)->cdata)->stream()
                                       : held(reinterpret_cast<THPCppFunction*>(its)->cdata)->stream();
  if (!stream) return pybind11::none();
  return pybind11::make_tuple(static_cast<int>(stream->device().index()), stream->id());
}

std::vector<pybind11::tuple> take_lines() {
  std::vector<Line> taken;
  {
    std::lock_guard<std::mutex> lock(log_mutex);
    taken.swap(lines);
  }
  std::vector<pybind11::tuple> found;
  for (auto& line : taken)
    found.push_back(pybind11::make_tuple(line.what, line.device, line.stream, line.event, line.reads, line.writes));
  return found;
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
  module.def("set_memory_limit", [](int device, int64_t bytes) { Allocator::limit.at(device) = bytes; });
  module.def("write_down", [](bool whether) { writes_down = whether; });
  module.def("take_lines", &take_lines);
  module.def("stream_of", &stream_of);
}
