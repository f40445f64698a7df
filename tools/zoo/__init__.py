"""The models that the project measures itself on.

Five families, all with random weights, so that nothing is downloaded:

- transformers' own models as ``torch.onnx`` exports them today (:mod:`tools.zoo.exported`; needs the optional extra ``zoo``);
- the nine CNNs that travel inside the onnx wheel, exported years ago and spelled accordingly (:mod:`tools.zoo.light`);
- TASO's own five, made without torch, and three other CNNs (:mod:`tools.zoo.taso`);
- a Llama-style transformer block with LoRA adapters, small enough for a demo, and a model of any size, written piece by piece,
  to measure memory (:mod:`tools.zoo.built`).

An exported model travels as its skeleton (:mod:`tools.zoo.skeletons`): everything but the weights, which are drawn anew.

Run ``python -m tools.zoo --help``.
"""
