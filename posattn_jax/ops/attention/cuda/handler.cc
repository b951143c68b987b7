// Launches compiled kernels on XLA's stream or, if LANES is defined, on the lanes of a CPU. All but addresses is in the
// attributes of the call:
//   program   the name under which the compiled kernels are registered
//   words     the struct that is the one parameter of each kernel, as 32-bit words
//   pointers  pairs: the word where an address goes, and whose: arguments are counted first, then results; null if < 0
//   clear     the results that are zeroed first
//   launches  for each: the kernel, the blocks in x and y, the bytes of shared memory, the number of pairs that follow;
//             and the pairs: a word, and what it is in this launch only
//   order     1 lets the lanes run from the last to the first
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"
#ifdef LANES
#include "kernel.cu"
#endif

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace posattn::handler {

namespace ffi = xla::ffi;

constexpr int KERNELS = 3;

void require(bool is_right, const std::string& message) {
  if (!is_right) throw std::runtime_error(message);
}

// A handler's error is the exception that its body throws.
template <class Body>
ffi::Error guarded(Body body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("posattn_cuda: ") + error.what());
  }
}

template <class T>
T attribute(ffi::Dictionary attributes, const char* name) {
  const auto found = attributes.get<T>(name);
  require(found.has_value(), std::string("no or a wrong attribute ") + name);
  return *found;
}

using Numbers = ffi::Span<const int64_t>;

// As much as any kernel's parameters, so that a kernel that takes more than was given reads zeros.
struct Parameter {
  alignas(16) std::array<int32_t, 1024> words{};
  int64_t size;

  explicit Parameter(ffi::Span<const int32_t> given) : size(given.size()) {
    require(given.size() <= words.size(), "the parameter is larger than 4 KiB");
    std::copy(given.begin(), given.end(), words.begin());
  }

  template <class T>
  void set(int64_t word, T value) {
    require(word >= 0 && word + int64_t(sizeof(T) / 4) <= size, "no such word in the parameter");
    std::memcpy(&words[word], &value, sizeof(T));
  }
};

struct Launch {
  int64_t kernel, blocks_x, blocks_y, shared, pairs;
};

// Calls each(launch, pairs).
template <class Each>
void for_launches(Numbers all, Each each) {
  constexpr int64_t FIELDS = sizeof(Launch) / sizeof(int64_t);
  for (const int64_t* at = all.begin(); at != all.end();) {
    Launch launch{};
    require(all.end() - at >= FIELDS, "a launch is cut");
    std::memcpy(&launch, at, sizeof(launch));
    at += FIELDS;
    require(launch.kernel >= 0 && launch.kernel < KERNELS, "no such kernel");
    require(launch.pairs >= 0 && launch.pairs <= (all.end() - at) / 2, "a launch is cut");
    each(launch, Numbers(at, 2 * launch.pairs));
    at += 2 * launch.pairs;
  }
}

std::vector<void*> addresses(ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  std::vector<void*> found;
  for (size_t i = 0; i < arguments.size(); ++i) found.push_back(arguments.get<ffi::AnyBuffer>(i)->untyped_data());
  for (size_t i = 0; i < results.size(); ++i) found.push_back(results.get<ffi::AnyBuffer>(i).value()->untyped_data());
  return found;
}

// Calls clear(result) for each result that is to be zeroed, then launch(launch, parameter).
template <class Clear, class Launched>
void run(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Dictionary attributes, Clear clear,
         Launched launched) {
  for (const int64_t i : attribute<Numbers>(attributes, "clear")) {
    require(i >= 0 && i < int64_t(results.size()), "no such result");
    clear(*results.get<ffi::AnyBuffer>(i).value());
  }
  Parameter parameter(attribute<ffi::Span<const int32_t>>(attributes, "words"));
  const std::vector<void*> places = addresses(arguments, results);
  const Numbers pointers = attribute<Numbers>(attributes, "pointers");
  for (size_t i = 0; i + 1 < pointers.size(); i += 2) {
    require(pointers[i + 1] < int64_t(places.size()), "no such buffer");
    parameter.set<void*>(pointers[i], pointers[i + 1] < 0 ? nullptr : places[pointers[i + 1]]);
  }
  for_launches(attribute<Numbers>(attributes, "launches"), [&](const Launch& launch, Numbers pairs) {
    if (launch.blocks_x == 0 || launch.blocks_y == 0) return;
    Parameter changed = parameter;
    for (size_t i = 0; i < pairs.size(); i += 2) changed.set<int32_t>(pairs[i], int32_t(pairs[i + 1]));
    launched(launch, changed);
  });
}

#ifdef LANES

constexpr void (*CODE[KERNELS])(const Params&) = {forward, backward, backward_keys};

ffi::Error execute(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Dictionary attributes) {
  return guarded([&] {
    require(4 * attribute<ffi::Span<const int32_t>>(attributes, "words").size() == sizeof(Params),
            "the parameter has " + std::to_string(sizeof(Params)) + " bytes");
    const bool backwards = attribute<int64_t>(attributes, "order");
    // What a kernel does not write is found to be NaN.
    for (size_t i = 0; i < results.size(); ++i) {
      const auto result = *results.get<ffi::AnyBuffer>(i).value();
      std::memset(result.untyped_data(), 0xff, result.size_bytes());
    }
    run(
        arguments, results, attributes,
        [](ffi::AnyBuffer result) { std::memset(result.untyped_data(), 0, result.size_bytes()); },
        [&](const Launch& l, const Parameter& parameter) {
          Params params;
          std::memcpy(&params, parameter.words.data(), sizeof(params));
          posattn::launch(CODE[l.kernel], int(l.blocks_x), int(l.blocks_y), int(l.shared), params, backwards);
        });
  });
}

#define STREAM

#else

constexpr const char* NAMES[KERNELS] = {"forward", "backward", "backward_keys"};
constexpr int THREADS = 128;

// What is used of CUDA's driver, which XLA has loaded; the types and numbers are those of cuda.h.
struct Driver {
  int (*cuGetErrorString)(int, const char**);
  int (*cuCtxGetCurrent)(void** context);
  int (*cuModuleLoadData)(void** module, const void* image);
  int (*cuModuleGetFunction)(void** function, void* module, const char* name);
  int (*cuFuncSetAttribute)(void* function, int attribute, int value);
  int (*cuThreadExchangeStreamCaptureMode)(int* mode);
  int (*cuMemsetD32Async)(unsigned long long address, unsigned value, size_t count, void* stream);
  int (*cuLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters,
                        void** extra);

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    require(library, "CUDA's driver, libcuda.so.1, is not found");
#define FIND(name)                                                \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  require(name, "CUDA's driver has no " #name)
    FIND(cuGetErrorString);
    FIND(cuCtxGetCurrent);
    FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction);
    FIND(cuFuncSetAttribute);
    FIND(cuThreadExchangeStreamCaptureMode);
    FIND(cuMemsetD32Async);
    FIND(cuLaunchKernel);
#undef FIND
  }
};

constexpr int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8, PREFERRED_SHARED_MEMORY_CARVEOUT = 9, ALL_SHARED = 100;
constexpr int STREAM_CAPTURE_MODE_RELAXED = 2;

const Driver& driver() {
  static const Driver found;
  return found;
}

void check(int code, const std::string& what) {
  if (code == 0) return;
  const char* text = nullptr;
  driver().cuGetErrorString(code, &text);
  throw std::runtime_error(what + ": " + (text ? text : "error " + std::to_string(code)));
}

// While a stream is captured, as a part of a graph, the driver lets this thread load nothing unless asked to.
class Relaxed {
 public:
  Relaxed() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  int mode_ = STREAM_CAPTURE_MODE_RELAXED;
};

struct Kernel {
  void* function = nullptr;
  int64_t shared = -1;  // the bytes of shared memory that it may have
};

struct Module {
  std::mutex mutex;  // of its own: while one device waits for a program to be loaded, others go on
  void* handle = nullptr;
  std::array<Kernel, KERNELS> kernels;
};

std::mutex mutex;  // of the two maps, whose entries stay where they are
std::map<std::string, std::string> programs;
std::map<std::pair<void*, std::string>, Module> modules;  // by context and program

// Makes what the launches need ready in the current context, which is the stream's: XLA sees to that.
std::array<void*, KERNELS> functions(ffi::Dictionary attributes) {
  const std::string program(attribute<std::string_view>(attributes, "program"));
  std::array<void*, KERNELS> found{};
  void* context = nullptr;
  check(driver().cuCtxGetCurrent(&context), "no context");
  std::unique_lock<std::mutex> of_maps(mutex);
  const auto image = programs.find(program);
  require(image != programs.end(), "the program " + program + " was not compiled in this process");
  Module& module = modules[{context, program}];
  of_maps.unlock();
  const std::lock_guard<std::mutex> lock(module.mutex);
  for_launches(attribute<Numbers>(attributes, "launches"), [&](const Launch& launch, Numbers) {
    Kernel& kernel = module.kernels[launch.kernel];
    if (kernel.function == nullptr || kernel.shared < launch.shared) {
      const Relaxed relaxed;
      const char* name = NAMES[launch.kernel];
      if (module.handle == nullptr)
        check(driver().cuModuleLoadData(&module.handle, image->second.data()), "the program is not loaded");
      check(driver().cuModuleGetFunction(&kernel.function, module.handle, name), name);
      check(driver().cuFuncSetAttribute(kernel.function, MAX_DYNAMIC_SHARED_SIZE_BYTES, int(launch.shared)), name);
      check(driver().cuFuncSetAttribute(kernel.function, PREFERRED_SHARED_MEMORY_CARVEOUT, ALL_SHARED), name);
      kernel.shared = launch.shared;
    }
    found[launch.kernel] = kernel.function;
  });
  return found;
}

// Before a program runs, XLA calls this, so that nothing is loaded while it runs or is captured.
ffi::Error initialize(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary attributes) {
  return guarded([&] { functions(attributes); });
}

ffi::Error execute(void* stream, ffi::RemainingArgs arguments, ffi::RemainingRets results,
                   ffi::Dictionary attributes) {
  return guarded([&] {
    const auto code = functions(attributes);
    run(
        arguments, results, attributes,
        [&](ffi::AnyBuffer result) {
          require(result.size_bytes() % 4 == 0, "what is zeroed has no whole words");
          if (result.size_bytes() == 0) return;
          const auto address = reinterpret_cast<unsigned long long>(result.untyped_data());
          check(driver().cuMemsetD32Async(address, 0, result.size_bytes() / 4, stream), "a result is not zeroed");
        },
        [&](const Launch& launch, Parameter& parameter) {
          void* parameters[] = {parameter.words.data()};
          check(driver().cuLaunchKernel(code[launch.kernel], unsigned(launch.blocks_x), unsigned(launch.blocks_y), 1,
                                        THREADS, 1, 1, unsigned(launch.shared), stream, parameters, nullptr),
                NAMES[launch.kernel]);
        });
  });
}

EXPORTED void posattn_register(const char* program, const void* image, size_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  programs[program] = std::string(static_cast<const char*>(image), size);
}

EXPORTED XLA_FFI_Error* posattn_initialize(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    posattn_initialize, initialize,
    ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().RemainingArgs().RemainingRets().Attrs(),
    {ffi::Traits::kCmdBufferCompatible});

#define STREAM .Ctx<ffi::PlatformStream<void*>>()

#endif

EXPORTED XLA_FFI_Error* posattn_execute(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(posattn_execute, execute,
                              ffi::Ffi::Bind() STREAM.RemainingArgs().RemainingRets().Attrs(),
                              {ffi::Traits::kCmdBufferCompatible});

}  // namespace posattn::handler
