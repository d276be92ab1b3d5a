// Programs on simulated GPUs, and driver functions that a test replaces with faulty ones.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/engine/engine.h"
#include "backends/cuda/sim/sim.h"
#include "devices/communicator.h"
#include "support/programs.h"
#include "support/raises.h"

namespace haliax::testing {

// Returns a copy of the simulation's functions, in which a test may replace any. The copy lives as
// long as the process.
inline cuda::Api& faulty() {
  static auto& all = *new std::vector<std::unique_ptr<cuda::Api>>;
  return *all.emplace_back(std::make_unique<cuda::Api>(cuda::simulated()));
}
inline std::unique_ptr<Device> device_of(const cuda::Api& api, const char* words = "") {
  return cuda::make_device(api, cuda::cuda_options(words), {});
}
inline Memory put(Device& device, const Bytes& bytes, int d = 0) {
  auto out = device.allocate(std::int64_t(bytes.size()), d);
  device.put(bytes_between(out.get(), bytes.data(), bytes.size()), d);
  return out;
}
inline Bytes get(Device& device, const Memory& memory, std::size_t n, int d = 0) {
  Bytes out(n);
  device.get(bytes_between(out.data(), memory.get(), n), d);
  return out;
}
inline Bytes bytes_of_floats(const std::vector<float>& x) {
  Bytes out(x.size() * 4);
  std::memcpy(out.data(), x.data(), out.size());
  return out;
}
inline std::vector<float> floats_of(const Bytes& x) {
  std::vector<float> out(x.size() / 4);
  std::memcpy(out.data(), x.data(), x.size());
  return out;
}

// Runs a program after `change` has edited the source code of its kernels. Returns the results, and
// the message of the error if one is raised.
inline std::pair<std::vector<Bytes>, std::string> planted(
    const Case& c, std::function<std::string(std::string)> change, const char* words = "") {
  static auto& plant = *new std::function<std::string(std::string)>;
  plant = std::move(change);
  auto& api = faulty();
  api.compile = [](int d, const std::vector<cuda::Kernel>& all) {
    std::vector<cuda::Kernel> changed;
    for (auto& k : all) {
      auto text = k.source;
      for (std::size_t at = 0; (at = text.find(k.name, at)) != std::string::npos;)
        text.replace(at, k.name.size(), "NAME");
      changed.push_back(cuda::named(plant(text)));
    }
    return cuda::simulated().compile(d, changed);
  };
  std::pair<std::vector<Bytes>, std::string> out;
  out.second = error_of([&] {
    out.first = c.run(*device_of(api, words));
    return 0;
  });
  cuda::inject_fault(0, "");
  return out;
}
// Replaces the n-th occurrence of `what` after the first occurrence of `after`.
inline std::string changed(std::string text, const std::string& what, const std::string& by,
                           int n = 0, const std::string& after = "") {
  auto at = text.find(what, text.find(after));
  for (; n > 0; --n) at = text.find(what, at + 1);
  REQUIRE(at != text.npos);
  return text.replace(at, what.size(), by);
}

// Runs one program per device of a mesh, with the scratch memory that the device requires. Returns
// the results per device.
inline std::vector<std::vector<Bytes>> run_on_mesh(Device& device, const Mesh& mesh,
                                                   const std::vector<Case>& cases, int times = 1) {
  std::vector<std::vector<Bytes>> out(cases.size());
  on_devices(
      mesh,
      [&](int d, Communicator& c) {
        auto& of = cases[std::size_t(d)];
        auto p = std::make_shared<Program>(of.program);
        p->device = p->backend_device = d;
        p->called = "jit at mesh.cpp:1";
        for (auto& [name, size] : mesh.axes()) p->mesh.push_back(size);
        for (auto& s : p->steps) {
          s.scratch_bytes = device.scratch_bytes(s, 0);
          s.scratch = p->arena_bytes;
          p->arena_bytes += aligned(s.scratch_bytes);
        }
        auto executable = device.compile(p);
        std::vector<Memory> retained;
        auto there = [&](const std::vector<Bytes>& all) {
          std::vector<void*> at;
          for (auto& b : all) {
            retained.push_back(put(device, b, d));
            at.push_back(retained.back().get());
          }

          return at;
        };
        const auto in = there(of.arguments), results = there(of.results);
        const auto arena = device.allocate(p->arena_bytes, d);
        for (int k = 0; k < times; ++k) executable->run(in, results, arena.get(), &c);
        for (std::size_t k = 0; k < of.results.size(); ++k)
          out[std::size_t(d)].push_back(
              get(device, retained[of.arguments.size() + k], of.results[k].size(), d));
      },
      &device);
  return out;
}

}  // namespace haliax::testing
