"""The encoder-decoders of Schmidt 2023's code in float64 loops: the tensors of its state dicts, and what they tell."""

import math
from typing import Any

import numpy as np

TIMED = ".object_to_time"
LENGTH, C, MLP = 7, 4, 5  # places, width, hidden features


class Code:
    """A model of that code, as a config says it.

    Args:
      config: of the YAML file.
      sizes: of the vocabularies of source and target.
    """

    def __init__(self, config: dict, sizes: tuple[int, int]):
        self.config, self.family, self.heads = config, config["model"], config["nHeads"]
        self.timed = "" if self.family == "PosNet" else TIMED
        self.shapes: dict = {}
        self.buffers: dict = {}
        for stack, embed, size in zip(("encoder", "decoder"), ("src_embed", "tgt_embed"), sizes, strict=True):
            self.shapes[f"{stack}.{embed}{self.timed}.word_embed.weight"] = (size, C)
            self.positions(stack, f"{stack}.{embed}{self.timed}")
            self.norm(f"{stack}.{'lnorm' if self.timed else 'lnorm2'}{self.timed}")
            for i in range(config["encL" if stack == "encoder" else "decL"]):
                layer = f"{stack}.layers.{i}"
                self.linear(f"{layer}.ff1{self.timed}", MLP, C)
                self.linear(f"{layer}.ff2{self.timed}", C, MLP)
                self.norm(f"{layer}.lnorm1{self.timed}")
                if stack == "decoder":
                    if not (self.own("dec_cross_att") and config["cross_gating_g"] == "none"):
                        self.norm(f"{layer}.lnorm2{self.timed}")
                    self.mixer(f"{layer}.self_att", "dec_self_att", i)
                    self.mixer(f"{layer}.cross_att", "dec_cross_att", i)
                else:
                    self.mixer(f"{layer}.att", "enc_self_att", i)
                self.norm(f"{layer}.lnorm{3 if stack == 'decoder' else 2}{self.timed}")
        self.linear(f"decoder.output_projection{self.timed}", sizes[1], C)

    def own(self, place):
        """Whether the mixer there is what the model is named after."""
        return self.config.get(f"{self.family.lower()}_{place}", place != "dec_cross_att")

    def gating(self, place):
        """Of values and of the gate, and whether values are normalised."""
        prefix = "cross_" if place == "dec_cross_att" else ""
        if not self.own(place):
            return "none", "none", False
        if self.family == "GaussianAttn":
            return ("glu" if self.config.get("use_glu") else "none"), "none", False
        if f"{prefix}gating_v" in self.config:
            return tuple(self.config[f"{prefix}{name}"] for name in ("gating_v", "gating_g", "normalize_v"))
        return ("gelu", "gelu", True) if self.config.get("gating") else ("none", "none", False)

    def context(self, i):
        return self.config["Ks"][i] if self.config.get("K_per_layer") else self.config.get("K", 0)

    @property
    def form(self):
        if self.family == "PosNet":
            return "sinusoidal" if self.config["posnet_type"] == "aPosNet" else "learned"
        if self.family == "RelTransformer" and not self.config.get("use_pos_embed"):
            return "none"
        known = {"LightConv": True, "LinearAttn": True, "FNet": True}
        return "sinusoidal" if self.config.get("use_sinusodial_pos_embed", known.get(self.family)) else "learned"

    # The tensors.

    def linear(self, name, features, inputs):
        self.shapes |= {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}

    def norm(self, name):
        self.shapes |= {f"{name}.a": (C,), f"{name}.b": (C,)}

    def positions(self, stack, embed):
        if self.form == "sinusoidal":
            self.buffers[f"{embed}.pos_embed"] = np.array(
                [
                    [(math.sin, math.cos)[j % 2](n / 10000 ** (2 * (j // 2) / C)) for j in range(C)]
                    for n in range(LENGTH)
                ],
                np.float32,
            )
            return
        self.buffers[f"{embed}.rng"] = np.arange(LENGTH)
        if self.form == "learned":
            self.shapes[f"{embed}.pos_embed.weight"] = (LENGTH, C)
        own = ("enc_self_att" if stack == "encoder" else "dec_self_att", "dec_cross_att")
        if self.family == "PosNet" and any(map(self.own, own)):
            self.norm(f"{stack}.lnorm1")

    def mixer(self, name, place, i):
        config, family, own, k = self.config, self.family, self.own(place), self.context(i)
        values, gate, normalized = self.gating(place)
        timed = "" if own and family in ("PosNet", "LinearAttn", "GaussianAttn", "FNet") else TIMED
        self.linear(f"{name}.W_v{timed}", C * (2 if values == "glu" else 1), C)
        self.linear(f"{name}.W_o{timed}", C, C)
        if gate != "none":
            self.linear(f"{name}.W_g{timed}", C, C)
        if normalized and values != "none":
            self.norm(f"{name}.lnorm_v{timed}")
        indices = [[[[0] * LENGTH for _ in range(LENGTH)]]]
        for t, s in np.ndindex(LENGTH, LENGTH):
            ratio = config.get("length_ratio", 1) if place == "dec_cross_att" else 1
            indices[0][0][t][s] = min(max(s - math.floor(ratio * t), -k), k or 0) + k
        if not own or family in ("Transformer", "RelTransformer"):
            self.linear(f"{name}.W_q{timed}", C, C)
            if not (own and config.get("only_rel_attention")):
                self.linear(f"{name}.W_k{timed}", C, C)
        elif family == "PosNet":
            for each in ("W_q1", "W_k") if config["posnet_type"] == "aPosNet" else ("W_q2",):
                self.linear(f"{name}.{each}", C, C)
            self.buffers[f"{name}.indices"] = np.array(indices)
        if own and (family == "RelTransformer" or config.get("posnet_type") == "rPosNet"):
            self.shapes[f"{name}.rel_embed.weight"] = (2 * k + 1, C)
            self.buffers[f"{name}.rng"] = np.arange(2 * k + 1)
        if own and family in ("RelTransformer", "LightConv"):
            self.buffers[f"{name}.indices"] = np.repeat(indices, self.heads, axis=1)
        if own and family == "LightConv":
            self.shapes[f"{name}.W"] = (self.heads, 2 * k + 1)
            outside = [[abs(s - t) > k for s in range(LENGTH)] for t in range(LENGTH)]
            self.buffers[f"{name}.gather_m"] = np.array([[outside]])
        if own and family == "LinearAttn":
            self.shapes[f"{name}.W"] = (1, self.heads, LENGTH, LENGTH)
        if own and family == "GaussianAttn":
            self.buffers[f"{name}.W"] = np.zeros((1, self.heads, LENGTH, LENGTH), np.float32)
            centres = (-1, 0, 1) if place == "enc_self_att" else (-1, 0)
            for h, t, s in np.ndindex(self.heads, LENGTH, LENGTH):
                deviation = (s - t - centres[h % len(centres)]) / config["std"]
                density = math.exp(-0.5 * deviation**2) / (config["std"] * math.sqrt(2 * math.pi))
                self.buffers[f"{name}.W"][0, h, t, s] = density

    def state(self):
        """A state dict of random numbers."""
        rng = np.random.default_rng(0)
        made = {name: np.float32(rng.normal(0, 0.5, shape)) for name, shape in self.shapes.items()}
        if self.config["tiew"]:
            for name in (f"decoder.tgt_embed{self.timed}.word_embed", f"decoder.output_projection{self.timed}"):
                made[f"{name}.weight"] = made[f"encoder.src_embed{self.timed}.word_embed.weight"]
        return made | self.buffers

    # What they tell.

    def told(self, tensors, source, target):
        """Log-probabilities of the tokens after each of one target, whose source has padding of id 0."""
        self.tensors = {name: np.float64(tensor) for name, tensor in tensors.items()}
        kept = source > 0
        x, of_source = self.embedded("encoder", f"encoder.src_embed{self.timed}", source)
        for i in range(self.config["encL"]):
            layer = f"encoder.layers.{i}"
            inner = self.normed(f"{layer}.lnorm1{self.timed}", x)
            mask = np.broadcast_to(kept, (len(x), len(x)))
            x = x + self.mixed(f"{layer}.att", "enc_self_att", i, inner, inner, of_source, of_source, mask)
            x = x + self.fed(layer, f"{layer}.lnorm2{self.timed}", x)
        last = "lnorm" if self.timed else "lnorm2"
        memory = self.normed(f"encoder.{last}{self.timed}", x)
        x, of_target = self.embedded("decoder", f"decoder.tgt_embed{self.timed}", target)
        before = np.tril(np.ones((len(x), len(x)), bool))
        mask = np.broadcast_to(kept, (len(x), len(memory)))
        for i in range(self.config["decL"]):
            layer = f"decoder.layers.{i}"
            inner = self.normed(f"{layer}.lnorm1{self.timed}", x)
            x = x + self.mixed(f"{layer}.self_att", "dec_self_att", i, inner, inner, of_target, of_target, before)
            second = f"{layer}.lnorm2{self.timed}"
            inner = self.normed(second, x) if f"{second}.a" in self.tensors else x
            x = x + self.mixed(f"{layer}.cross_att", "dec_cross_att", i, inner, memory, of_target, of_source, mask)
            x = x + self.fed(layer, f"{layer}.lnorm3{self.timed}", x)
        logits = self.applied(f"decoder.output_projection{self.timed}", self.normed(f"decoder.{last}{self.timed}", x))
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def applied(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def normed(self, name, x):
        """By the unbiased variance."""
        deviation = x - x.mean(-1, keepdims=True)
        variance = (deviation**2).sum(-1, keepdims=True) / (x.shape[-1] - 1)
        return deviation / np.sqrt(variance + 1e-8) * self.tensors[f"{name}.a"] + self.tensors[f"{name}.b"]

    def fed(self, layer, norm, x):
        hidden = np.maximum(self.applied(f"{layer}.ff1{self.timed}", self.normed(norm, x)), 0)
        return self.applied(f"{layer}.ff2{self.timed}", hidden)

    def embedded(self, stack, embed, ids):
        words = self.tensors[f"{embed}.word_embed.weight"][ids]
        if self.form == "none":
            return words * math.sqrt(C), None
        if self.form == "sinusoidal":
            places = self.tensors[f"{embed}.pos_embed"][: len(ids)]
            return words * math.sqrt(C) + places, places
        places = self.tensors[f"{embed}.pos_embed.weight"][: len(ids)]
        features = self.normed(f"{stack}.lnorm1", places) if f"{stack}.lnorm1.a" in self.tensors else places
        return (words + places) * math.sqrt(C), features

    def mixed(self, name, place, i, x, memory, of_query, of_key, mask):
        """c_t = sum_s alpha_ts v_s for each head, gated; mask [t s]."""
        values, gate, normalized = self.gating(place)
        own, k, heads = self.own(place), self.context(i), self.heads
        timed = TIMED if f"{name}.W_v{TIMED}.weight" in self.tensors else ""
        value = self.applied(f"{name}.W_v{timed}", memory)
        if values == "glu":
            value = value[:, :C] / (1 + np.exp(-value[:, C:]))
        elif values != "none":
            value = activated(values, value)
        if normalized and values != "none":
            value = self.normed(f"{name}.lnorm_v{timed}", value)

        def of_heads(x):
            return x.reshape(len(x), heads, -1)

        query, key = x, memory
        projected = {"W_q": query, "W_k": key}
        if own and self.family == "PosNet":
            projected = {"W_q1": of_query, "W_q2": of_query, "W_k": of_key}
        made = {
            each: of_heads(self.applied(f"{name}.{each}{timed}", given))
            for each, given in projected.items()
            if f"{name}.{each}{timed}.weight" in self.tensors
        }
        q: Any = next((made[each] for each in ("W_q", "W_q1", "W_q2") if each in made), None)
        ratio = self.config.get("length_ratio", 1) if place == "dec_cross_att" else 1
        table: Any = self.tensors.get(f"{name}.rel_embed.weight")
        kernel: Any = self.tensors.get(f"{name}.W")
        value, outputs = of_heads(value), np.zeros((len(x), heads, C // heads))
        for h, t in np.ndindex(heads, len(x)):
            scores = np.zeros(len(memory))
            inside = mask[t].copy()
            for s in range(len(memory)):
                offset = s - math.floor(ratio * t)
                if q is not None:
                    scores[s] = q[t, h] @ made["W_k"][s, h] if "W_k" in made else 0
                    if table is not None:
                        scores[s] += q[t, h] @ of_heads(table)[min(max(offset, -k), k) + k, h]
                    scores[s] /= math.sqrt(C // heads)
                elif self.family == "LightConv":
                    scores[s] = kernel[h, min(max(offset, -k), k) + k]
                    inside[s] &= abs(offset) <= k or self.config["global_context"]
                elif self.family == "FNet":
                    scores[s] = math.cos(2 * math.pi * t * s / mask[t].sum()) / math.sqrt(mask[t].sum())
                else:
                    scores[s] = kernel[0, h, t, s]
            if q is not None or self.family == "LightConv":
                # A query of padding may have no key in its kernel: what it tells is not asked.
                weights = np.where(inside, np.exp(scores - scores[inside].max(initial=0)), 0)
                weights /= max(weights.sum(), 1e-300)
            else:
                weights = np.where(inside, scores, 0)
            outputs[t, h] = weights @ value[:, h]
        outputs = outputs.reshape(len(x), -1)
        if gate != "none":
            outputs *= activated(gate, self.applied(f"{name}.W_g{timed}", x))
        return self.applied(f"{name}.W_o{timed}", outputs)


def activated(name, x):
    if name == "sigmoid":
        return 1 / (1 + np.exp(-x))
    return np.vectorize(lambda each: each * (1 + math.erf(each / math.sqrt(2))) / 2)(x)
