// Converts GPT-2's weights to and from the names and layout of Hugging Face's checkpoints.
#include "weights.h"

namespace gpt2 {

StateNames hugging_face_names(std::string prefix) {
  if (!prefix.empty() && prefix.back() == '.') prefix.pop_back();
  return {{"transformer", prefix},
          {"embeddings", prefix},
          {"blocks", "h"},
          {"token_embeddings", "wte"},
          {"position_embeddings", "wpe"}};
}
TensorFile to_hugging_face(const Gpt2LMHeadModel& model, const std::string& prefix) {
  return to_state_dict(model, hugging_face_names(prefix));
}

Gpt2LMHeadModel from_hugging_face(TensorFile file, const Gpt2LMHeadModel& like) {
  std::string prefix = file.find("transformer.wte.weight") ? "transformer." : "";
  // Tensors that the model does not have: masks, and a copy of the embedding.
  std::erase_if(file.tensors, [&](const Tensor& t) {
    return t.name.ends_with(".attn.bias") || t.name.ends_with(".attn.masked_bias") ||
           (t.name == "lm_head.weight" && !like.lm_head);
  });
  return from_state_dict(file, like, hugging_face_names(prefix));
}

}  // namespace gpt2
