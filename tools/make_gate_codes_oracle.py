"""Make tests/oracles/float8/gate_codes.safetensors: codes of gate and up by PyTorch, and gradients of SwiGLU of them.

usage: make_gate_codes_oracle.py   (needs torch, safetensors)

Tensors: gate, up, dy [6, 300] in fp32; of gate and of up NAME.codes (E4M3 bits as U8) and NAME.scale (E8M0 bytes, one
for each 128 neighbours of a row); y, dgate and dup in fp32, computed in double from what the codes represent.
"""
import pathlib

import torch
from safetensors.torch import save_file

FILE = pathlib.Path(__file__).resolve().parent.parent / "tests/oracles/float8/gate_codes.safetensors"
SEGMENT = 128
LARGEST = 448.0


def encode(x):
    """Codes, scales and what they represent; a scale is the least power of two that maps all to at most LARGEST."""
    codes = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty(x.shape[0], -(-x.shape[1] // SEGMENT), dtype=torch.uint8)
    decoded = torch.empty(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        for segment in range(scales.shape[1]):
            at = slice(segment * SEGMENT, (segment + 1) * SEGMENT)
            values = x[row, at].double()
            exponent = -127
            while float(values.abs().max()) > LARGEST * 2.0 ** exponent:
                exponent += 1
            made = (values * 2.0 ** -exponent).float().to(torch.float8_e4m3fn)
            codes[row, at] = made.view(torch.uint8)
            scales[row, segment] = exponent + 127
            decoded[row, at] = made.double() * 2.0 ** exponent
    return codes, scales, decoded


def main():
    torch.manual_seed(5)
    gate, up, dy = (torch.randn(6, 300) for _ in range(3))
    gate[1] *= 30.0
    up[2] *= 1e4
    gate[3, :128] = 0.0  # a segment of zeros
    up[3, 200] = -1e6  # an outlier beside small values
    gate[4, 5] = 448.0  # the greatest of its segment, as is
    gate[4, 130] = 449.0
    up[5] *= 1e-36
    tensors = {"gate": gate, "up": up, "dy": dy}
    decoded = {}
    for name in ("gate", "up"):
        tensors[name + ".codes"], tensors[name + ".scale"], decoded[name] = encode(tensors[name])
        decoded[name].requires_grad_()
    y = torch.nn.functional.silu(decoded["gate"]) * decoded["up"]
    y.backward(dy.double())
    tensors["y"] = y.detach().float()
    tensors["dgate"] = decoded["gate"].grad.float()
    tensors["dup"] = decoded["up"].grad.float()
    save_file(tensors, FILE)


if __name__ == "__main__":
    main()
