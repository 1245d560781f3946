"""What compiled code is told, as records: of a decoder, with where its weights lie, and of a call.

A whole number is a size, a flag or an address; 0 where there is none."""

import numpy as np

WHOLE, REAL = np.int64, np.float32
FLOAT32, BFLOAT16, FLOAT16, INT8, KINDS = range(5)  # how a weight is kept
BYTES = (4, 2, 2, 1)  # of a number, by kind
FEWEST_OUTPUTS = 8  # of a product
# What the stream of a forward begins with: embeddings, features, or what the last forward has left.
EMBEDDINGS, FEATURES, LEFT = range(3)


def each(kind, names: str) -> list[tuple]:
    """Fields of a record that are of one kind."""
    return [(name, kind) for name in names.split()]


def record_type(*fields: tuple) -> np.dtype:
    return np.dtype([*fields], align=True)


# A product's `kind`: how its weight is kept; scales: what its outputs are multiplied by.
PRODUCT = record_type(*each(WHOLE, "weight kind scales bias outputs inputs"))
NORM = record_type(("weight", WHOLE), ("eps", REAL))
NORMS = "before_attention after_attention before_mlp after_mlp q_norm k_norm of_embedding"  # as of a Layer
LAYER = record_type(
    *each(PRODUCT, "q k v out gate up down"),
    *each(NORM, NORMS),
    ("keeps_normed", WHOLE),  # see decoder.Layer
    *each(WHOLE, "window from_first later"),  # see decoder.RowMask
    *each(WHOLE, "cos sin"),  # [capacity, rotated]; the first half of each row of sin is negative
    *each(WHOLE, "key_cache value_cache"),  # [groups, capacity, head_dim]
    ("feature", WHOLE),  # 1 + the column of the features where its input is kept
    *each(REAL, "scaling softcap"),  # of the scores
)
MODEL = record_type(
    *each(WHOLE, "layer_count hidden heads groups head_dim"),
    ("rotated", WHOLE),  # channels of a head
    ("width", WHOLE),  # of the MLP
    ("output_width", WHOLE),  # numbers that the output layer gives
    ("vocab", WHOLE),
    ("draft_ids", WHOLE),  # [output_width]: which tokens these are; 0: all, in their order
    ("known", WHOLE),  # tokens with an embedding
    *each(WHOLE, "embedding_table narrow_table"),  # and whether it is bfloat16, not float32
    ("tanh_gelu", WHOLE),  # whether that is the activation; else it is SiLU
    ("norm_heads", WHOLE),  # whether q and k are normed head by head
    *each(WHOLE, "states states_width narrow_states"),  # of the features; whether they are bfloat16
    *each(WHOLE, "capacity narrow"),  # of the cache; whether it is bfloat16
    ("reads", WHOLE),  # whether it reads features
    ("parts", WHOLE),  # of the features, each normed by itself
    ("begins_with_reads", WHOLE),  # whether the stream begins with them, and embeddings are beside it
    ("reads_embeddings", WHOLE),  # whether the product that reads features reads embeddings before them
    ("stream", WHOLE),  # [rows, hidden]: where the last layer's output is left for later
    ("stream_is_normed", WHOLE),
    ("last_feature", WHOLE),  # as a layer's `feature`, of the last layer's output
    *each(REAL, "embedding_scale logits_scale softcap"),
    *each(NORM, "last_norm read_norm read_after"),
    *each(PRODUCT, "head read"),
)
# What is asked of a forward (see kernels.forward_function), or of reading features.
CALL = record_type(
    *each(WHOLE, "begins ids start rows kernels last_alone logits scratch"),
    *each(WHOLE, "newest depths hidden"),
    *each(WHOLE, "drafts draft_logits drawing seen uniforms probs made adjusted masses sums"),
)
# How the tokens of a draft are drawn, see native.Drawing. The tokens with a bias follow, and then their
# biases. temperature 0: the likeliest token.
DRAWING = record_type(
    *each(np.float64, "temperature top_k top_p min_p repetition presence frequency stops_below biased_count")
)
# float32 numbers, others that may be the same in bfloat16, and how many.
COPY = record_type(*each(WHOLE, "wide narrow count"))
# What threads that compute a forward together share: how often they have met, how many wait, whether they
# are to give up, and the system's function that lets others run.
TEAM = record_type(*each(WHOLE, "generation arrived given_up give_way"))
