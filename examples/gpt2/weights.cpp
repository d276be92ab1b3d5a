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

Gpt2LMHeadModel from_hugging_face(const TensorFile& file, const Gpt2LMHeadModel& like) {
  std::string prefix = file.find("transformer.wte.weight") ? "transformer." : "";
  std::vector<std::string> unused;
  auto model = from_state_dict(file, like, hugging_face_names(prefix), &unused);
  for (auto& name : unused) {
    bool buffer = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    bool tied_head = name == "lm_head.weight" && !like.lm_head;
    if (!buffer && !tied_head) throw Error("[gpt2] the file holds the tensor " + name + ", for which the model has no place");
  }
  return model;
}

}  // namespace gpt2
