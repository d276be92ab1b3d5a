// A shared library of the CUDA toolkit, opened at run time; nothing links to it.
#pragma once
#include <dlfcn.h>

#include <initializer_list>
#include <type_traits>

namespace haliax::cuda {

class Library {
 public:
  // Opens the first library that exists. It is never closed.
  explicit Library(std::initializer_list<const char*> names) {
    for (auto* name : names)
      if (!library_) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  template <class F> bool find(F& f, const char* name) const {
    f = library_ ? reinterpret_cast<F>(dlsym(library_, name)) : nullptr;
    return f != nullptr;
  }

 private:
  void* library_ = nullptr;
};

}  // namespace haliax::cuda
