"""Text models built by transformers: encoders, decoders, encoder-decoders."""

from __future__ import annotations

from torch import nn

from zoo_models import huggingface as hf
from zoo_models.entry import ZooEntry, inputs, integers


def gpt2(attention: str) -> nn.Module:
    build = hf.model(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=hf.VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        use_cache=False,
        attn_implementation=attention,
    )
    return build()


_ENCODERS: tuple[ZooEntry, ...] = (
    hf.entry(
        "bert",
        hf.model("BertForPreTraining", "BertConfig", **hf.TEXT),
        inputs(input_ids=hf.IDS, attention_mask=hf.MASK, token_type_ids=integers(2, hf.LENGTH)),
    ),
    hf.entry(
        "roberta", hf.model("RobertaForMaskedLM", "RobertaConfig", **hf.TEXT), hf.PADDED_WORDS
    ),
    hf.entry(
        "distilbert",
        hf.model(
            "DistilBertForSequenceClassification",
            "DistilBertConfig",
            vocab_size=hf.VOCABULARY,
            dim=32,
            hidden_dim=64,
            n_layers=2,
            n_heads=4,
            max_position_embeddings=32,
            output_hidden_states=True,
        ),
        inputs(hf.IDS),
    ),
    hf.entry(
        "electra",
        hf.model("ElectraForTokenClassification", "ElectraConfig", embedding_size=16, **hf.TEXT),
        hf.PADDED_WORDS,
    ),
    hf.entry(
        "albert",
        hf.model("AlbertForMaskedLM", "AlbertConfig", embedding_size=16, **hf.TEXT),
        hf.WORDS,
    ),
    hf.entry(
        "deberta_v2",
        hf.model(
            "DebertaV2ForSequenceClassification",
            "DebertaV2Config",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            **hf.TEXT,
        ),
        hf.PADDED_WORDS,
    ),
)

_DECODERS: tuple[ZooEntry, ...] = (
    hf.entry("gpt2", lambda: gpt2("sdpa"), hf.WORDS),
    hf.entry("gpt2_eager", lambda: gpt2("eager"), inputs(hf.IDS, attention_mask=hf.MASK)),
    hf.entry(
        "llama",
        hf.model("LlamaForCausalLM", "LlamaConfig", **hf.GROUPED_DECODER),
        hf.PADDED_WORDS,
    ),
    hf.entry(
        "llama_labels",
        hf.model("LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=True, **hf.GROUPED_DECODER),
        inputs(input_ids=hf.IDS, labels=hf.IDS),
    ),
    hf.entry("qwen3", hf.model("Qwen3ForCausalLM", "Qwen3Config", **hf.GROUPED_DECODER), hf.WORDS),
    hf.entry(
        "mistral",
        hf.model("MistralForCausalLM", "MistralConfig", sliding_window=4, **hf.GROUPED_DECODER),
        hf.WORDS,
    ),
    hf.entry("gemma", hf.model("GemmaForCausalLM", "GemmaConfig", **hf.GROUPED_DECODER), hf.WORDS),
    hf.entry(
        "phi",
        hf.model("PhiForCausalLM", "PhiConfig", partial_rotary_factor=0.5, **hf.DECODER),
        hf.WORDS,
    ),
    hf.entry("gpt_neox", hf.model("GPTNeoXForCausalLM", "GPTNeoXConfig", **hf.DECODER), hf.WORDS),
    hf.entry(
        "opt",
        hf.model("OPTForCausalLM", "OPTConfig", **hf.OPT),
        hf.PADDED_WORDS,
    ),
    hf.entry(
        "mixtral",
        hf.model(
            "MixtralForCausalLM",
            "MixtralConfig",
            num_local_experts=4,
            **hf.GROUPED_DECODER,
        ),
        hf.WORDS,
    ),
    hf.entry(
        "mixtral_balanced",  # its loss counts how often each expert is chosen
        hf.model(
            "MixtralForCausalLM",
            "MixtralConfig",
            num_local_experts=4,
            output_router_logits=True,
            **hf.GROUPED_DECODER,
        ),
        hf.LABELLED_WORDS,
    ),
    hf.entry(
        "gpt_oss",  # its experts have biases, weights the other way round, a gate of their own
        hf.model(
            "GptOssForCausalLM",
            "GptOssConfig",
            num_local_experts=4,
            num_experts_per_tok=2,
            experts_implementation="eager",
            **hf.GROUPED_DECODER,
        ),
        hf.WORDS,
    ),
    hf.entry(
        "bloom",  # its activation has a backward of its own
        hf.model(
            "BloomForCausalLM",
            "BloomConfig",
            vocab_size=hf.VOCABULARY,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            use_cache=False,
        ),
        hf.PADDED_WORDS,
    ),
    hf.entry(
        "mamba",
        hf.model(
            "MambaForCausalLM",
            "MambaConfig",
            vocab_size=hf.VOCABULARY,
            hidden_size=24,
            state_size=4,
            num_hidden_layers=2,
            time_step_rank=4,
            use_cache=False,
            pad_token_id=0,
        ),
        # The path without custom kernels steps through time in Python, so the graph grows with it.
        inputs(input_ids=integers(hf.VOCABULARY, 5)),
    ),
)

_ENCODER_DECODERS: tuple[ZooEntry, ...] = (
    hf.entry(
        "t5",
        hf.model(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=hf.VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            use_cache=False,
            pad_token_id=0,
            decoder_start_token_id=0,
        ),
        hf.TRANSLATION,
    ),
    hf.entry(
        "bart",
        hf.model("BartForConditionalGeneration", "BartConfig", **hf.BART),
        hf.TRANSLATION,
    ),
)

ENTRIES = _ENCODERS + _DECODERS + _ENCODER_DECODERS
