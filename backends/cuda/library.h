// A library of the toolkit's, found when the program runs: nothing is linked to it.
#pragma once
#include <dlfcn.h>

#include <initializer_list>
#include <type_traits>

namespace haliax::cuda {

class Library {
 public:
  // the first that is there; never closed
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
