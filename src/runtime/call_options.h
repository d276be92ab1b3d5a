// The options of a jitted function, as they apply to a call.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "haliax/jit.h"
#include "program/program.h"
#include "transforms/sharding.h"

namespace haliax::detail {

struct CallOptions : JitOptions {
  // Returns the mesh of a call, or null: the function is not partitioned, or there is no mesh.
  std::shared_ptr<const Mesh> call_mesh() const;
  // Returns the mapping of results and of arguments without a placement.
  const Mapping* default_mapping(const std::shared_ptr<const Mapping>& outside) const {
    return axis_resources ? &*axis_resources : outside.get();
  }
  std::vector<const Mapping*> given_mappings() const;  // null: not given
  // Returns the sharding of an argument: by the options, otherwise by the placement of the array,
  // otherwise by the default mapping. Called outside of a trace.
  Sharding argument_sharding(const Node&, int argument, const Mesh&, const std::string& what) const;
  // Raises if the options do not match the mesh or the arguments. Runs before the function is
  // traced.
  void check_call(int arguments) const;
  void require_devices(const Mesh&, program::Device&) const;
};

}  // namespace haliax::detail
