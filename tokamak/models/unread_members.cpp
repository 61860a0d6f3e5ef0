#include "tokamak/models/unread_members.h"

#include <algorithm>
#include <string_view>

#include <fmt/ranges.h>

#include "tokamak/core/names.h"
#include "tokamak/models/family.h"
#include "tokamak/models/gated_config.h"

namespace tokamak {
namespace {

// What transformers 4 and 5 know in these families' configurations (tools/compare_config_members.py
// lists it) but never compute a loss with: types, ids, how to generate, GPT-2's summaries.
constexpr std::string_view kWithoutEffect =
    " add_cross_attention assistant_confidence_threshold assistant_early_exit "
    "assistant_ensemble_weight assistant_lookbehind attn_implementation bad_words_ids "
    "begin_suppress_tokens bos_token_id cache_config cache_implementation "
    "chunk_size_feed_forward compile_config constraints continuous_batching_config "
    "cross_attention_hidden_size decoder_start_token_id disable_compile diversity_penalty "
    "do_sample dola_layers dtype early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff experts_implementation "
    "exponential_decay_length_penalty finetuning_task force_words_ids forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing guidance_scale id2label is_assistant is_decoder "
    "is_encoder_decoder label2id length_penalty low_memory max_cache_len max_length "
    "max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p "
    "name_or_path no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule "
    "num_beam_groups num_beams num_labels num_return_sequences output_attentions "
    "output_hidden_states output_logits output_scores pad_token_id penalty_alpha "
    "prefill_chunk_size prefix pretraining_tp problem_type prompt_lookup_num_tokens "
    "remove_invalid_values renormalize_logits repetition_penalty return_dict "
    "return_dict_in_generate return_legacy_cache sep_token_id sequence_bias speculation_type "
    "stop_strings summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj suppress_tokens target_lookbehind task_specific_params temperature "
    "tf_legacy_loss tie_encoder_decoder token_healing tokenizer_class top_h top_k top_p "
    "torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache use_mtp "
    "watermarking_config ";

// Members by which other models compute something else. transformers ignores most of them in our
// families, but who wrote them did not mean that.
constexpr std::string_view kOfOtherMaths =
    " alibi attention_bias attention_chunk_size attention_multiplier attn_logit_softcapping "
    "clip_qkv dim_model_base final_logit_softcapping mlp_bias no_rope_layers per_layer_config "
    "pruned_heads qk_layernorm query_pre_attn_scalar scale_depth sliding_window use_mrope "
    "use_parallel_residual use_qk_norm ";
constexpr std::string_view kOfOtherMathsUnlessOne =
    " embedding_multiplier logit_scale logits_scaling n_routed_experts num_experts "
    "num_local_experts residual_multiplier rotary_pct scale_emb ";

constexpr size_t kMostShown = 10;

bool holds(std::string_view names, const std::string& name) {
  return names.find(" " + name + " ") != std::string_view::npos;
}

void require_layer_types(const HfFields& f, const ModelSpec& c) {
  const std::vector<bool> slides = read_layer_types(f, c);
  for (int64_t i = 0; i < c.num_layers; ++i) {
    const bool has_window = window_of(c, i) > 0;
    TOK_REQUIRE(slides[static_cast<size_t>(i)] == has_window,
                "{}: \"layer_types\": layer {} {} a window in {}, whatever \"layer_types\" says: "
                "remove it, or name the architecture that it belongs to",
                f.what(), i, has_window ? "has" : "has not", c.family->architecture);
  }
}

bool asks_for_other_maths(const HfFields& f, const std::string& name) {
  if (holds(kOfOtherMathsUnlessOne, name)) return f.asks(name) && f.number_or(name, 1.0) != 1.0;
  if (name == "sliding_window" && !f.flag_or("use_sliding_window", true)) return false;
  return holds(kOfOtherMaths, name) && f.asks(name);
}

}  // namespace

std::string judge_unread(const HfFields& f, const ModelSpec& c) {
  std::vector<std::string> unknown;
  for (const std::string& name : f.unread()) {
    if (name == "layer_types") require_layer_types(f, c);
    TOK_REQUIRE(!asks_for_other_maths(f, name),
                "{}: \"{}\": {} is not supported: {} does not compute with it, so remove it if the "
                "model was trained without",
                f.what(), name, f.text_of(name), c.family->architecture);
    if (name != "layer_types" && name[0] != '_' && !holds(kWithoutEffect, name) &&
        !holds(kOfOtherMaths, name) && !holds(kOfOtherMathsUnlessOne, name))
      unknown.push_back(printable(name));
  }
  if (unknown.empty()) return "";
  const size_t shown = std::min(unknown.size(), kMostShown);
  const std::string more =
      shown < unknown.size() ? fmt::format(" and {} more", unknown.size() - shown) : "";
  unknown.resize(shown);
  return fmt::format("{}: {} does not know \"{}\"{}: ignored, as in transformers", f.what(),
                     c.family->architecture, fmt::join(unknown, "\", \""), more);
}

}  // namespace tokamak
