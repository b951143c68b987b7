// In the place of CUDA's driver: writes down what it is asked to do. And in the place of XLA: calls a handler.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

namespace {

std::string calls;
int capture_mode = 1, parameter_words, failing;
void* const CONTEXTS[] = {reinterpret_cast<void*>(0xc0), reinterpret_cast<void*>(0xc1)};
void* context = CONTEXTS[0];

template <class... Values>
int record(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  calls += line;
  return failing ? failing : 0;
}

XLA_FFI_Error* create(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; }
XLA_FFI_Error* stream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = reinterpret_cast<void*>(0x5);
  return nullptr;
}


}  // namespace

extern "C" {

int cuGetErrorString(int, const char** text) {
  *text = "what CUDA says";
  return 0;
}
int cuCtxGetCurrent(void** current) {
  *current = context;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return 0;
}
int cuModuleLoadData(void** module, const void* image) {
  *module = context;
  return record("load %s mode %d\n", static_cast<const char*>(image), capture_mode);
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(module) * 0x100 + std::strlen(name));
  return record("function %s of %zx\n", name, module);
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return record("attribute %d of %zx: %d\n", attribute, function, value);
}
int cuMemsetD32Async(unsigned long long address, unsigned value, size_t count, void* on) {
  return record("set %llx to %u, %zu times on %zx\n", address, value, count, on);
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                   unsigned shared, void* on, void** parameters, void** extra) {
  record("launch %zx of %u %u %u blocks, %u threads, %u bytes on %zx:", function, x, y, z, threads, shared, on);
  for (int i = 0; i < parameter_words; i++) record(" %x", static_cast<uint32_t*>(parameters[0])[i]);
  return record(extra ? " extra\n" : "\n");
}

// Makes one of two contexts current, and lets the driver's functions fail from now on.
void set(int number, int code) {
  context = CONTEXTS[number];
  failing = code;
}

// Calls a handler with buffers of 16 bytes at given addresses. Returns what was done since the last time, or the error.
const char* call(XLA_FFI_Handler* handler, int stage, const char* program, const int64_t* launches, size_t num_launches,
                 const int64_t* clear, size_t num_clear, const int32_t* words, size_t num_words,
                 const int64_t* pointers, size_t num_pointers, const int64_t* addresses, size_t num_arguments,
                 size_t num_results) {
  static std::string result;
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = create;
  api.XLA_FFI_Stream_Get = stream;
  int64_t size = 4;
  std::vector<XLA_FFI_Buffer> buffers;
  for (size_t i = 0; i < num_arguments + num_results; i++)
    buffers.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, XLA_FFI_DataType_F32,
                       reinterpret_cast<void*>(addresses[i]), 1, &size});
  std::vector<void*> places;
  for (auto& buffer : buffers) places.push_back(&buffer);
  std::vector<XLA_FFI_ArgType> argument_types(num_arguments, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> result_types(num_results, XLA_FFI_RetType_BUFFER);

  // Attributes are in the order of their names.
  auto array = [](XLA_FFI_DataType type, const void* data, size_t n) {
    return XLA_FFI_Array{type, n, const_cast<void*>(data)};
  };
  XLA_FFI_Array arrays[] = {array(XLA_FFI_DataType_S64, clear, num_clear),
                            array(XLA_FFI_DataType_S64, launches, num_launches),
                            array(XLA_FFI_DataType_S64, pointers, num_pointers),
                            array(XLA_FFI_DataType_S32, words, num_words)};
  XLA_FFI_ByteSpan name{program, std::strlen(program)};
  const char* texts[] = {"clear", "launches", "pointers", "program", "words"};
  void* values[] = {&arrays[0], &arrays[1], &arrays[2], &name, &arrays[3]};
  XLA_FFI_AttrType types[5] = {XLA_FFI_AttrType_ARRAY, XLA_FFI_AttrType_ARRAY, XLA_FFI_AttrType_ARRAY,
                               XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_ARRAY};
  XLA_FFI_ByteSpan names[5], *named[5];
  for (int i = 0; i < 5; i++) names[i] = {texts[i], std::strlen(texts[i])}, named[i] = &names[i];

  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.stage = XLA_FFI_ExecutionStage(stage);
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, int64_t(num_arguments), argument_types.data(), places.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, int64_t(num_results), result_types.data(),
                places.data() + num_arguments};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 5, types, named, values};
  parameter_words = int(num_words);
  calls.clear();
  XLA_FFI_Error* error = handler(&frame);
  result = error ? calls + "error: " + error->message : calls;
  delete error;
  return result.c_str();
}

// The traits that a handler tells XLA.
unsigned traits(XLA_FFI_Handler* handler) {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_Error_Create = create;
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{
      {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr}, &metadata};
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = &api;
  return handler(&frame) ? ~0u : metadata.traits;
}

}  // extern "C"
