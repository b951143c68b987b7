"""Random models of transformers and timm, and what they tell: for tests, by a Python that has these and torch.

python tests/support/make_hugging_face.py make FOLDER [WIDTH]   FOLDER/KIND has a model, its inputs.npz and outputs.npz
python tests/support/make_hugging_face.py answer KIND FOLDER    outputs.npz of the model and the inputs.npz in a folder

tests/convert/made was made by the first, with a width of 8: transformers 5.24.0, timm 1.0.31, torch 2.13.0.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from tokenizers import BertWordPieceTokenizer

SPECIAL = ["[PAD]", "the", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # not the first ones, and not in our order
WORDS = "cat dog house tree river stone bird child ship cloud garden window mountain see like follow find leave paint"
WORDS += " carry carri hear remember forget ##s ##ves ##es a no . é 猫"
PIECES = SPECIAL + WORDS.split()
PAIRS = [("The cat sees a dog.", "A ship."), ("The Tree finds no bird.", "猫 E\u0301 unknown"), ("a", ".")]
VISION = {"image_size": (8, 12), "patch_size": 4}


def tokenizer(folder):
    """vocab.txt and tokenizer.json of PIECES."""
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    made = BertWordPieceTokenizer({piece: i for i, piece in enumerate(PIECES)})
    made.enable_padding()
    made.save(str(folder / "tokenizer.json"))


def randomize(model, width):
    """Far enough from how it begins that everything matters, and the same at every width."""
    for name, parameter in model.named_parameters():
        mean = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        parameter.data.normal_(mean, 0.3 * (8 / width) ** 0.5)
    return model.eval()


def bert_config(width, **fields):
    sizes = {"hidden_size": width, "num_attention_heads": 2, "intermediate_size": width + 4, "num_hidden_layers": 2}
    sizes |= {"vocab_size": len(PIECES) + 2, "max_position_embeddings": 16, "type_vocab_size": 3}
    return transformers.BertConfig(**sizes, hidden_dropout_prob=0.2, layer_norm_eps=1e-7, **fields)


def make(folder, width):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for kind in MADE:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    config = bert_config(width)
    for kind in ("bert", "classifier"):
        tokenizer(folder / kind)
        (folder / kind / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
        subwords = transformers.BertTokenizer.from_pretrained(folder / kind)
        encoded = subwords(
            *map(list, zip(*PAIRS, strict=True)), padding="max_length", max_length=14, return_tensors="np"
        )
        np.savez(folder / kind / "inputs.npz", **encoded)
    randomize(transformers.BertForPreTraining(config), width).save_pretrained(folder / "bert")
    names = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
    relu = bert_config(width, hidden_act="relu", **names)
    randomize(transformers.BertForSequenceClassification(relu), width).save_pretrained(folder / "classifier")

    pixels = rng.normal(size=(2, 3, *VISION["image_size"])).astype(np.float32)
    for kind in ("vit", "timm"):
        np.savez(folder / kind / "inputs.npz", pixels=pixels)
    sizes = {"hidden_size": width, "num_attention_heads": 2, "intermediate_size": width + 4, "num_hidden_layers": 2}
    config = transformers.ViTConfig(**sizes, **VISION, num_labels=3)
    randomize(transformers.ViTForImageClassification(config), width).save_pretrained(folder / "vit")
    save_file(randomize(timm_model(width), width).state_dict(), folder / "timm" / "model.safetensors")

    config = transformers.T5Config(d_model=width, d_kv=3, d_ff=5, num_heads=3, num_layers=1, vocab_size=4)
    randomize(transformers.T5EncoderModel(config), width).save_pretrained(folder / "t5")
    np.savez(folder / "t5" / "inputs.npz", length=300)
    for kind in MADE:
        answer(kind, folder / kind)


def timm_model(width, **fields):
    sizes = {"img_size": VISION["image_size"], "patch_size": VISION["patch_size"], "embed_dim": width, "depth": 2}
    return VisionTransformer(**sizes, num_heads=2, mlp_ratio=(width + 4) / width, num_classes=3, **fields)


def of_bert(folder, inputs):
    model = transformers.BertForPreTraining.from_pretrained(folder)
    told = model.eval()(**inputs, output_hidden_states=True)
    pooled = model.bert(**inputs).pooler_output
    return {"logits": told.prediction_logits, "pooled": pooled} | numbered(told.hidden_states)


def of_classifier(folder, inputs):
    told = transformers.BertForSequenceClassification.from_pretrained(folder).eval()(
        **inputs, output_hidden_states=True
    )
    return {"logits": told.logits} | numbered(told.hidden_states)


def of_vit(folder, inputs):
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    told = model(inputs["pixels"], output_hidden_states=True)
    return {"logits": told.logits} | numbered(told.hidden_states)


def of_timm(folder, inputs):
    tensors = load_file(folder / "model.safetensors")
    model = timm_model(len(tensors["norm.weight"]))
    model.load_state_dict(tensors)
    return {"logits": model.eval()(inputs["pixels"])}


def of_big_vision(folder, inputs):
    """timm reads big_vision's model.npz, too."""
    path = folder / "model.npz"
    with np.load(path) as file:
        width = len(file["params/head/kernel"])
    model = timm_model(width, no_embed_class=True, act_layer=lambda: torch.nn.GELU(approximate="tanh"))
    model.load_pretrained(str(path))
    return {"logits": model.eval()(inputs["pixels"])}


def of_base_bert(folder, inputs):
    """`BertModel`, without a head."""
    told = transformers.BertModel.from_pretrained(folder).eval()(**inputs, output_hidden_states=True)
    return {"pooled": told.pooler_output} | numbered(told.hidden_states)


def of_base_vit(folder, inputs):
    """`ViTModel`, without a head and a pooler, of an image [height width 3] as its image processor prepares it."""
    model = transformers.ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
    pixels = transformers.ViTImageProcessorPil.from_pretrained(folder)(inputs["image"].numpy(), return_tensors="pt")
    return {"pixels": pixels["pixel_values"], "features": model(**pixels).last_hidden_state[:, 0]}


def of_t5(folder, inputs):
    """The bias of every offset, from a place long before a query to one long after it."""
    layer = transformers.T5EncoderModel.from_pretrained(folder).encoder.block[0].layer[0].SelfAttention
    length = int(inputs["length"])
    bias = layer.compute_bias(length, length)[0]
    return {"bias": torch.cat([bias[:, :, 0].flip(1), bias[:, 0, 1:]], 1).T}


def numbered(states):
    return {f"hidden_{i}": state for i, state in enumerate(states)}


def answer(kind, folder):
    with np.load(folder / "inputs.npz") as file, torch.no_grad():
        told = KINDS[kind](folder, {name: torch.as_tensor(array) for name, array in file.items()})
    np.savez_compressed(folder / "outputs.npz", **{name: each.detach().numpy() for name, each in told.items()})


MADE = {"bert": of_bert, "classifier": of_classifier, "vit": of_vit, "timm": of_timm, "t5": of_t5}
KINDS = MADE | {"big_vision": of_big_vision, "base_bert": of_base_bert, "base_vit": of_base_vit}

if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    if what == "make":
        make(pathlib.Path(rest[0]), int(rest[1]) if rest[1:] else 8)
    else:
        answer(rest[0], pathlib.Path(rest[1]))
