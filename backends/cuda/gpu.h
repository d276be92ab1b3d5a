// The requirements on a machine with GPUs, and the options of HALIAX_CUDA. This header does not
// depend on CUDA.
#pragma once
#include <string>
#include <vector>

namespace haliax::cuda {

// The properties of a machine. Versions are encoded as in CUDA: 13000 is 13.0.
struct Gpus {
  int driver = 0;          // CUDA version of the driver; 0: no driver
  int needed = 0;          // CUDA version of the runtime
  std::string error = {};  // error of the query for GPUs; empty: none
  struct Gpu {
    std::string name;
    int sm = 0;           // 90: sm_90
    std::string id = {};  // unique within a host
  };
  std::vector<Gpu> gpus = {};
};
void require_gpus(const Gpus&);  // raises an error for the first requirement that is not met

// The words of HALIAX_CUDA, separated by commas or spaces.
struct CudaOptions {
  bool sync = false;   // wait after each launch, so that a fault names its step
  bool eager = false;  // no graphs
  bool keep = false;   // write the sources of kernels to files
  bool exact = false;  // no contracted multiply-adds
  bool tf32 = false;   // f32 matmuls in tf32
  bool tune = false;   // time algorithms, and store the fastest ones
};
CudaOptions cuda_options(const char* text);  // null: no words; raises for unknown words

}  // namespace haliax::cuda
