// What a machine must have for cards to be used, and what HALIAX_CUDA asks for. Nothing here needs
// CUDA.
#pragma once
#include <string>
#include <vector>

namespace haliax::cuda {

// What was found out of a machine. Versions as CUDA has them: 13000 is 13.0.
struct Gpus {
  int driver = 0;         // the version that it is for; 0: there is none
  int needed = 0;         // that of the runtime
  std::string says = {};  // what went wrong in asking for the cards; empty: nothing
  struct Gpu {
    std::string name;
    int sm = 0;           // 90: sm_90
    std::string id = {};  // no two of a host have the same
  };
  std::vector<Gpu> gpus = {};
};
void require_gpus(const Gpus&);  // raises what is missing, the first of it

// Words, with commas or spaces between them.
struct CudaOptions {
  bool sync = false;   // waits behind each launch: a fault is that of its step
  bool eager = false;  // no graphs
  bool keep = false;   // writes the texts of kernels
  bool exact = false;  // no contracted multiply-adds
  bool tf32 = false;   // products of f32 in tf32
  bool tune = false;   // times algorithms, and writes down which was taken
};
CudaOptions cuda_options(const char* text);  // null: none; raises for one that is not known

}  // namespace haliax::cuda
