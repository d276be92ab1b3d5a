// What transforms on leaves share.
#pragma once
#include "haliax/transforms.h"
#include "graph/node.h"

namespace haliax {

Axes with_hidden(const Axes&, const Axes& hidden);                    // those that are not there, first
bool same_axes(const NamedArray&, const NamedArray&);                 // in any order, of those that users see

}  // namespace haliax
