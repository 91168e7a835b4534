"""Which parameters of transformers' models are one tensor under two names: the names it drops when it saves.

From `_tied_weights_keys` of its model classes; `tests/checkpoints/test_ties.py` holds the table to those that are
installed. A name stands here without the prefix that a model in a larger one has.
"""

from collections.abc import Collection, Mapping

Ties = Mapping[str, tuple[str, ...]]  # a second name, and the first ones that it may stand for

# whatever a configuration says of the output embedding
ALWAYS: Ties = {
    "encoder.embed_tokens.weight": ("shared.weight",),
    "decoder.embed_tokens.weight": ("shared.weight",),
}
BY_CONFIG: Ties = {
    "lm_head.weight": (
        "model.embed_tokens.weight",
        "model.language_model.embed_tokens.weight",
        "shared.weight",
        "model.decoder.embed_tokens.weight",
        "model.shared.weight",
        "transformer.wte.weight",
        "model.text_model.embed_tokens.weight",
        "backbone.embeddings.weight",
        "transformer.word_embeddings.weight",
        "prophetnet.word_embeddings.weight",
        "transformer.w.weight",
        "model.language_model.shared.weight",
        "funnel.embeddings.word_embeddings.weight",
        "gpt_neox.embed_in.weight",
        "model.embed_tokens.embed_tokens.weight",
        "led.shared.weight",
        "model.text_model.embeddings.tok_embeddings.weight",
        "model.embed_tokens.word_embeddings.weight",
        "embed_tokens.weight",
        "wte.weight",
        "word_embeddings.weight",
    ),
    "encoder.embed_tokens.weight": ("decoder.embed_tokens.weight",),
    "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    "decoder.embed_tokens.weight": ("encoder.text_model.embed_tokens.weight",),
    "lm_head.decoder.bias": ("lm_head.bias",),
    "lm_head.decoder.weight": (
        "roberta.embeddings.word_embeddings.weight",
        "data2vec_text.embeddings.word_embeddings.weight",
        "roberta_prelayernorm.embeddings.word_embeddings.weight",
        "bert.embeddings.word_embeddings.weight",
        "esm.embeddings.word_embeddings.weight",
        "gte.embeddings.word_embeddings.weight",
        "longformer.embeddings.word_embeddings.weight",
        "mpnet.embeddings.word_embeddings.weight",
        "ibert.embeddings.word_embeddings.weight",
    ),
    "cls.predictions.decoder.weight": (
        "bert.embeddings.word_embeddings.weight",
        "ernie.embeddings.word_embeddings.weight",
        "roc_bert.embeddings.word_embeddings.weight",
        "deberta.embeddings.word_embeddings.weight",
        "fnet.embeddings.word_embeddings.weight",
        "mobilebert.embeddings.word_embeddings.weight",
        "roformer.embeddings.word_embeddings.weight",
        "visual_bert.embeddings.word_embeddings.weight",
        "layoutlm.embeddings.word_embeddings.weight",
        "lxmert.embeddings.word_embeddings.weight",
        "mra.embeddings.word_embeddings.weight",
        "nomic_bert.embeddings.word_embeddings.weight",
        "nystromformer.embeddings.word_embeddings.weight",
        "transformer.embeddings.word_embeddings.weight",
        "tapas.embeddings.word_embeddings.weight",
        "yoso.embeddings.word_embeddings.weight",
    ),
    "text_decoder.embed_tokens.weight": ("shared.weight",),
    "proj_out.weight": ("model.decoder.embed_tokens.weight",),
    "text_encoder.embed_tokens.weight": ("shared.weight",),
    "encoder.embed_patches.proj.weight": ("patch_embed.proj.weight",),
    "encoder.embed_patches.proj.bias": ("patch_embed.proj.bias",),
    "predictions.decoder.weight": ("albert.embeddings.word_embeddings.weight",),
    "predictions.decoder.bias": ("predictions.bias",),
    "text_decoder.cls.predictions.decoder.bias": ("text_decoder.cls.predictions.bias",),
    "text_decoder.cls.predictions.decoder.weight": ("text_decoder.bert.embeddings.word_embeddings.weight",),
    "generator_lm_head.weight": (
        "electra.embeddings.word_embeddings.weight",
        "convbert.embeddings.word_embeddings.weight",
    ),
    "pred_layer.proj.weight": ("transformer.embeddings.weight",),
    "decoder.weight": ("model.embeddings.tok_embeddings.weight",),
    "prompt_encoder.shared_embedding.positional_embedding": ("shared_image_embedding.positional_embedding",),
    "encoder.relative_bias.biases.0.relative_attention_bias.weight": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    "output_projection.weight": (
        "biogpt.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ),
    "model.local_encoder.embed_tokens.weight": ("lm_head.weight",),
    "mlm_score.decoder.weight": (
        "bridgetower.text_model.embeddings.word_embeddings.weight",
        "vilt.embeddings.text_embeddings.word_embeddings.weight",
    ),
    "backbone_model.embed_tokens.embed_audio_tokens.weight": ("depth_decoder.model.embed_tokens.weight",),
    "encoder.language_model.norm.weight": ("decoder.norm.weight",),
    "encoder.language_model.embed_tokens.weight": ("decoder.embed_tokens.weight",),
    "vocab_projector.weight": ("distilbert.embeddings.word_embeddings.weight",),
    "decoder.output_projection.weight": ("decoder.embed_tokens.weight",),
    "mmm_text_head.bias": ("mmm_text_head.decoder.bias",),
    "mim_head.bias": ("mim_head.decoder.bias",),
    "mlm_head.bias": ("mlm_head.decoder.bias",),
    "mmm_image_head.bias": ("mmm_image_head.decoder.bias",),
    "embed_out.weight": (
        "gpt_neox_japanese.embed_in.weight",
        "gpt_neox.embed_in.weight",
    ),
    "output.weight": ("git.embeddings.word_embeddings.weight",),
    "ctc_head.weight": ("encoder.out.weight",),
    "ctc_head.bias": ("encoder.out.bias",),
    "text_model.lm_head.weight": ("text_model.model.embed_tokens.weight",),
    "entity_predictions.decoder.weight": ("luke.entity_embeddings.entity_embeddings.weight",),
    "unembedding_projection.weight": ("model.embed_tokens.embedding_projection.weight",),
    "transformer.tokens_embed.weight": ("lm_head.weight",),
    "prophetnet.decoder.word_embeddings.weight": ("prophetnet.word_embeddings.weight",),
    "encoder.word_embeddings.weight": ("word_embeddings.weight",),
    "decoder.word_embeddings.weight": ("word_embeddings.weight",),
    "codec_head": ("model.codec_embedding.weight",),
    "head.weight": ("rwkv.embeddings.weight",),
    "text_decoder_postnet.lm_head.weight": ("speecht5.decoder.prenet.embed_tokens.weight",),
    "lm_head.out_proj.weight": (
        "model.encoder.text_model.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ),
    "decoder.embed_tokens.eoi_embedding": ("encoder.text_model.embed_tokens.eoi_embedding",),
    "decoder.relative_bias.biases.0.relative_attention_bias.weight": (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    ),
    "head.decoder.weight": ("model.embed_tokens.weight",),
    "lm_loss.weight": ("transformer.word_embedding.weight",),
}
PREFIXES = ("", "model.", "module.", "transformer.")


def known_ties(names: Collection[str], tied: bool | None = None) -> dict[str, str]:
    """List the names that may stand for another one's tensor, and that other one: what transformers ties.

    `tied`: what the configuration says of the output embedding.
    """
    found: dict[str, str] = {}
    for table in (ALWAYS,) if tied is False else (ALWAYS, BY_CONFIG):
        for alias, sources in table.items():
            for prefix in PREFIXES:
                source = next((prefix + name for name in sources if prefix + name in names), None)
                if prefix + alias in names and source is not None:
                    found.setdefault(prefix + alias, source)
    return found
