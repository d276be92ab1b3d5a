// Includes the library, except for the headers that a program includes by name: checkpoint.h,
// conv.h, data.h, dlpack.h, eigen.h, fmt.h, huggingface.h, mup.h, optimizers.h, profile.h,
// state_dict.h, tokenizer.h and view.h.
#pragma once
// First: most compile errors are about tree.h, and compilers list each header that leads to it.
#include "haliax/tree.h"

#include "haliax/aliases.h"
#include "haliax/array.h"
#include "haliax/axis.h"
#include "haliax/chunked.h"
#include "haliax/control.h"
#include "haliax/custom_op.h"
#include "haliax/debug.h"
#include "haliax/dtype.h"
#include "haliax/io.h"
#include "haliax/jit.h"
#include "haliax/lora.h"
#include "haliax/losses.h"
#include "haliax/mesh.h"
#include "haliax/moe.h"
#include "haliax/nn.h"
#include "haliax/ops.h"
#include "haliax/optim.h"
#include "haliax/policy.h"
#include "haliax/random.h"
#include "haliax/ranks.h"
#include "haliax/schedules.h"
#include "haliax/shard.h"
#include "haliax/stacked.h"
#include "haliax/transforms.h"
