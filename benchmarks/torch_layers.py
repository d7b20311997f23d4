"""How fast are the layers of pblas.torch and Muon beside torch's own: parallelize_module, async TP, symmetric memory?

mpiexec -n 2 python -m mpi4py -m benchmarks.torch_layers [--what training decode host muon moves] [--json FILE]

training    forward and backward pass of the MLP and of the projections of attention of Llama 3, tokens cut over ranks
decode      layers for few tokens, every rank with all of them, in one CUDA graph
host        an eager block of two small layers: time until the call returns
muon        a step for the weights of a model, cut over the ranks
moves       redistribution of DTensors on a mesh of two dimensions, on 4 ranks

All columns have the same weights. On CPUs peers use Gloo and sizes are small. Times are those of the slowest rank, from
a barrier to the end; medians of rounds of rotated order. Results are compared with those of the first column.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}

import torch
import torch.distributed as dist
import torch.distributed.tensor.parallel as torchs
from mpi4py import MPI
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import pblas.torch as pt
from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import rounds, together

GPUS = torch.cuda.is_available()
MODELS = {"8B": (4096, 14336), "70B": (8192, 28672)} if GPUS else {"small": (512, 1536)}
"""Hidden and feed-forward size of Llama 3."""
HEADS = 1024 if GPUS else 128  # features of the keys of all heads
TOKENS = 4096 if GPUS else 128
DTYPE = torch.bfloat16 if GPUS else torch.float32
SERVED = (1, 16, 64) if GPUS else (1, 16)
LAYERS = 4  # of the decoded model
TOLERANCE = 0.03
COMPILED: dict[str, dict[str, Any]] = {"compiled": {}, "graphs": {"mode": "reduce-overhead"}}
"""Modes of torch.compile."""


Columns = dict[str, Callable[[], Any]]


def settle() -> None:
    """Wait for this rank's GPU (local)."""
    if GPUS:
        torch.cuda.synchronize()


class MLP(nn.Module):
    """The gated block of Llama."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """The projections of attention, with a sum in place of the attention itself."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.qkv, self.out = linear(hidden, hidden + 2 * HEADS), linear(hidden, hidden)

    def forward(self, x: Any) -> Any:
        z = self.qkv(x)
        heads = z.shape[-1] * HEADS // (self.out.in_features + 2 * HEADS)
        return self.out(z[..., 2 * heads :] + z[..., : 2 * heads].mean(-1, keepdim=True))


def linear(features: int, outwards: int) -> nn.Linear:
    """A layer without bias."""
    with torch.device("cuda" if GPUS else "cpu"):
        return nn.Linear(features, outwards, bias=False, dtype=DTYPE)


def styled(model: nn.Module, mesh: Any, of: Any, rows: Any) -> Any:
    """A copy of the model by styles of torch or of pblas; `rows` is the layout of tokens."""
    plan = {"gate": of.ColwiseParallel(), "up": of.ColwiseParallel(), "qkv": of.ColwiseParallel(input_layouts=rows)}
    plan |= {name: of.RowwiseParallel(output_layouts=rows) for name in ("down", "out")}
    model = copy.deepcopy(model)
    plan = {name: style for name, style in plan.items() if hasattr(model, name)}
    if isinstance(model, MLP):  # one gather for both layers
        prepared = torchs.PrepareModuleInput(input_layouts=(rows,), desired_input_layouts=(Replicate(),))
        torchs.parallelize_module(model, mesh, prepared)
    return torchs.parallelize_module(model, mesh, plan, src_data_rank=None)


def training(mesh: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """**Collective.** Rows of forward and backward passes."""
    for size in options.models:
        hidden, inner = MODELS[size]
        blocks = {"mlp": partial(MLP, hidden, inner), "attention": partial(Attention, hidden)}
        for name in options.blocks:
            model = blocks[name]()
            torch.manual_seed(1 + dist.get_rank())
            x = torch.randn(TOKENS // mesh.size(), hidden, device=mesh.device_type, dtype=DTYPE, requires_grad=True)
            dy = torch.randn_like(x)
            theirs = styled(model, mesh, torchs, Shard(0))
            if isinstance(model, MLP):
                arguments = model.up, model.down, model.gate
                ours: Any = pt.ParallelMLP.from_linear(*arguments, mesh=mesh, sequence_dim=0, src_data_rank=None)
            else:
                ours = styled(model, mesh, pt, Shard(0))
            models = {"parallelize_module": theirs, "pblas": ours}
            for mode, how in COMPILED.items():
                if GPUS and mode in options.modes:
                    models[f"async TP {mode}"] = torch.compile(styled(model, mesh, torchs, Shard(0)), **how)
                    models[f"pblas {mode}"] = torch.compile(ours, fullgraph=True, **how)
            yield {"what": "training", "model": f"{size} {name}"} | measured(
                {key: partial(step, each, x, dy) for key, each in models.items()}, options
            )


def step(model: Any, x: Any, dy: Any) -> tuple[Any, Any]:
    """**Collective.** y, and the gradient by x; gradients of weights are new, too."""
    torch.compiler.cudagraph_mark_step_begin()
    x.grad = None
    for parameter in model.parameters():
        parameter.grad = None
    y = model(x)
    y.backward(dy)
    return y.detach(), x.grad


class Decoder:
    """A model of some layers whose weights are cut, for tokens that every rank has, by functions for its products."""

    def __init__(self, hidden: int, inner: int, mesh: Any) -> None:
        self.hidden, self.norm = hidden, torch.ones(hidden, device=mesh.device_type, dtype=DTYPE)
        self.mesh, self.layers = mesh, list[Any]()
        for _ in range(LAYERS):
            attention, mlp = Attention(hidden), MLP(hidden, inner)
            options = {"mesh": mesh, "src_data_rank": None}
            self.layers.append(
                (
                    pt.ColumnParallelLinear.from_linear(attention.qkv, **options),
                    pt.RowParallelLinear.from_linear(attention.out, **options),
                    pt.ParallelMLP.from_linear(mlp.up, mlp.down, mlp.gate, **options),
                )
            )

    def ours(self, x: Any) -> Any:
        """All layers by modules of pblas."""
        for qkv, out, mlp in self.layers:
            z = qkv(self.normed(x))
            x = out(z[:, : out.weight.to_local().shape[1]], residual=x)
            x = mlp(self.normed(x), residual=x)
        return x

    def theirs(self, add_up: Callable[[Any, Any], Any], x: Any) -> Any:
        """All layers by torch, with a function for product and sum over all ranks."""
        for qkv, out, mlp in self.layers:
            z = nn.functional.linear(self.normed(x), qkv.weight.to_local())
            w = out.weight.to_local()
            x = x + add_up(z[:, : w.shape[1]], w)
            gate, up = nn.functional.linear(self.normed(x), mlp.gate_up.weight.to_local().flatten(0, 1)).chunk(2, -1)
            x = x + add_up(nn.functional.silu(gate) * up, mlp.down.weight.to_local())
        return x

    def normed(self, x: Any) -> Any:
        return nn.functional.rms_norm(x, (self.hidden,), self.norm)

    def sums(self, tokens: int) -> Iterator[tuple[str, Callable[[Any, Any], Any]]]:
        """**Collective.** Ways to multiply by a weight and to add up over all ranks."""

        def collective(z: Any, w: Any) -> Any:
            y = torch.mm(z, w.t())
            dist.all_reduce(y)
            return y

        yield "NCCL" if GPUS else "Gloo", collective
        if not GPUS:
            return
        import torch.distributed._symmetric_memory as symm_mem

        group = self.mesh.get_group().group_name
        memory = symm_mem.empty(tokens, self.hidden, dtype=DTYPE, device="cuda")
        symm_mem.rendezvous(memory, group)

        def one_shot(z: Any, w: Any) -> Any:
            torch.mm(z, w.t(), out=memory)
            return torch.ops.symm_mem.one_shot_all_reduce(memory, "sum", group)

        def two_shot(z: Any, w: Any) -> Any:
            torch.mm(z, w.t(), out=memory)
            return torch.ops.symm_mem.two_shot_all_reduce_(memory, "sum", group)

        yield "one-shot", one_shot
        yield "two-shot", two_shot


def decode(mesh: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """**Collective.** Rows of layers for few tokens."""
    for size in options.models:
        hidden, inner = MODELS[size]
        model = Decoder(hidden, inner, mesh)
        for tokens in SERVED:
            torch.manual_seed(1)
            x = torch.randn(tokens, hidden, device=mesh.device_type, dtype=DTYPE)
            calls: Columns = {name: partial(model.theirs, add_up, x) for name, add_up in model.sums(tokens)}
            calls["pblas"] = partial(model.ours, x)
            with torch.no_grad():
                columns = {name: recorded(call) if GPUS else call for name, call in calls.items()}
                yield {"what": "decode", "model": f"{size}, {tokens} tokens"} | measured(columns, options, 10)


def recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """**Collective.** The same call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def host(mesh: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """**Collective.** Rows of the time on the processor of eager calls, in us."""
    torch.manual_seed(0)
    with torch.device(mesh.device_type):
        block = Attention(256).to(DTYPE)
    for rows in (Shard(0), Replicate()):
        x = torch.randn(64, 256, device=mesh.device_type, dtype=DTYPE)
        for grad in (False, True):
            x = x.detach().requires_grad_(grad)
            columns = {}
            for name, of in (("parallelize_module", torchs), ("pblas", pt)):
                model = styled(block, mesh, of, rows)
                columns[name] = partial(step, model, x, torch.ones_like(x)) if grad else partial(model, x)
            with torch.set_grad_enabled(grad):
                times = rounds(
                    {name: partial(until_return, call) for name, call in columns.items()}, 3 * options.rounds
                )
            yield {
                "what": "host",
                "model": f"block, {rows}, {'forward and backward' if grad else 'inference'}",
                "ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
            }


def until_return(call: Callable[[], Any], calls: int = 10) -> float:
    """**Collective.** Seconds until a call returns, the slowest rank's."""
    settle()
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    settle()
    return float(MPI.COMM_WORLD.allreduce(seconds, MPI.MAX))


def orthogonalized(x: Any) -> Any:
    """Five steps of Newton and Schulz by torch, in the dtype of x."""
    is_tall = x.shape[0] > x.shape[1]
    x = x.t() if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        g = x @ x.t()
        x = torch.addmm(x, torch.addmm(g, g, g, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.t() if is_tall else x


class Weights:
    """Momenta of the weights of a model, cut as by tensor parallelism, and ways to orthogonalize them."""

    def __init__(self, hidden: int, inner: int, layers: int, mesh: Any) -> None:
        self.mesh, size = mesh, mesh.size()
        shapes = {"qkv": (hidden + 2 * HEADS, hidden, 0), "out": (hidden, hidden, 1)}
        shapes |= {"gate": (inner, hidden, 0), "up": (inner, hidden, 0), "down": (hidden, inner, 1)}
        torch.manual_seed(1 + dist.get_rank())
        self.dims, self.shards, self.parameters = list[int](), list[Any](), list[Any]()
        for m, n, dim in shapes.values():
            for _ in range(layers):
                shape = (m // size, n) if dim == 0 else (m, n // size)
                shard = torch.randn(shape, device=mesh.device_type, dtype=DTYPE)
                self.dims.append(dim)
                self.shards.append(shard)
                weight = nn.Parameter(torch.distributed.tensor.DTensor.from_local(shard.clone(), mesh, [Shard(dim)]))
                weight.grad = torch.distributed.tensor.DTensor.from_local(shard, mesh, [Shard(dim)])
                self.parameters.append(weight)
        self.optimizer = pt.Muon(self.parameters, lr=1.0, momentum=0.0, nesterov=False, weight_decay=1.0)

    def _gathered(self, shard: Any, dim: int) -> Any:
        parts = [torch.empty_like(shard) for _ in range(self.mesh.size())]
        dist.all_gather(parts, shard)
        return torch.cat(parts, dim)

    def every_rank_all(self) -> Any:
        """Each rank gathers and orthogonalizes all of them."""
        rank, size = dist.get_rank(), self.mesh.size()
        results = [
            orthogonalized(self._gathered(shard, dim)).chunk(size, dim)[rank]
            for shard, dim in zip(self.shards, self.dims, strict=True)
        ]
        return results[0], results[-1]

    def gather_per_matrix(self) -> Any:
        """One rank gathers and orthogonalizes a matrix, and sends the shards back; ranks take turns."""
        rank, size, results = dist.get_rank(), self.mesh.size(), list[Any]()
        for k, (shard, dim) in enumerate(zip(self.shards, self.dims, strict=True)):
            owner, result = k % size, torch.empty_like(shard)
            parts = [torch.empty_like(shard) for _ in range(size)] if rank == owner else None
            dist.gather(shard, parts, owner)
            if parts is not None:
                parts = [part.contiguous() for part in orthogonalized(torch.cat(parts, dim)).chunk(size, dim)]
            dist.scatter(result, parts, owner)
            results.append(result)
        return results[0], results[-1]

    def layer_sharded(self) -> Any:
        """Each rank has whole layers: an exchange gathers a matrix of each layer, one brings shards back."""
        size, results = self.mesh.size(), list[Any]()
        for k in range(0, len(self.shards), size):
            dim, sent = self.dims[k], torch.stack(self.shards[k : k + size])
            got = torch.empty_like(sent)
            dist.all_to_all_single(got, sent)
            mine = torch.stack(orthogonalized(torch.cat(list(got), dim)).chunk(size, dim))
            dist.all_to_all_single(got, mine)
            results += list(got)
        return results[0], results[-1]

    def muon(self) -> Any:
        """`pblas.torch.Muon`, whose weights become their updates."""
        self.optimizer.step()
        first, last = (self.parameters[k] for k in (0, -1))
        return tuple(-weight.to_local() / max(1, weight.shape[0] / weight.shape[1]) ** 0.5 for weight in (first, last))


def muon(mesh: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """**Collective.** A row of steps of Muon."""
    size = options.models[0]
    hidden, inner = MODELS[size]
    weights = Weights(hidden, inner, options.layers, mesh)
    columns: Columns = {"every rank all": weights.every_rank_all, "gather per matrix": weights.gather_per_matrix}
    if GPUS:
        columns["layer-sharded"] = weights.layer_sharded
    columns["pblas"] = weights.muon
    with torch.no_grad():
        yield {"what": "muon", "model": f"{size}, {options.layers} layers"} | measured(columns, options)


def moves(mesh: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """**Collective.** Rows of redistributions by torch and by pblas."""
    grid, n = pt.init_mesh((2, mesh.size() // 2)), 8192 if GPUS else 2048
    torch.manual_seed(0)
    x = torch.randn(n, n, device=mesh.device_type)
    places = [Shard(0), Shard(1)], [Shard(1), Shard(0)], [Shard(0), Replicate()], [Replicate(), Shard(1)]
    for source, target in itertools.permutations(places, 2):
        t = distribute_tensor(x, grid, source, src_data_rank=None)
        columns = {
            "DTensor": lambda t=t, target=target: t.redistribute(placements=target).to_local(),
            "pblas": lambda t=t, target=target: pt.to_dtensor(pt.from_dtensor(t), grid, target).to_local(),
        }
        yield {"what": "moves", "model": f"{source} to {target}"} | measured(columns, options)


def measured(columns: Columns, options: argparse.Namespace, calls: int = 1) -> dict[str, Any]:
    """**Collective.** Milliseconds of each column, and how far its results are from those of the first."""
    errors, missing, first, right = {}, {}, None, {}
    for name, call in columns.items():
        try:
            results = call()
            settle()
        except Exception as error:  # noqa: BLE001 - becomes the reason in the file
            missing[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            continue
        right[name] = call
        if results is None:
            continue
        results = [x.float().clone() for x in (results if isinstance(results, tuple) else (results,))]
        first = results if first is None else first
        errors[name] = max(float((x - y).norm() / y.norm()) for x, y in zip(results, first, strict=True))

    def several(call: Callable[[], Any]) -> float:
        return together(lambda: [call() for _ in range(calls)], settle) / calls

    times = rounds({name: partial(several, call) for name, call in right.items()}, options.rounds, warm=4)
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    return {
        "ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
        "errors": errors,
        "wrong": wrong,
        "missing": missing,
    }


def main() -> None:
    """Measure all rows, print them, and write them to a file if one is asked for."""
    works = {"training": training, "decode": decode, "host": host, "muon": muon, "moves": moves}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="*", choices=works, default=["training", "decode", "host", "muon"])
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layers", type=int, default=2, help="layers whose weights Muon updates")
    parser.add_argument("--blocks", nargs="*", choices=("mlp", "attention"), default=["mlp", "attention"])
    parser.add_argument("--modes", nargs="*", choices=COMPILED, default=list(COMPILED), help="of torch.compile")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mesh = pt.init_mesh()
    if GPUS:
        torch._inductor.config._micro_pipeline_tp = True  # noqa: SLF001 - torch's own name for async TP
    rows = []
    for what in options.what:
        for row in works[what](mesh, options):
            best = min((ms for name, ms in row["ms"].items() if not name.startswith("pblas")), default=None)
            ours = min((ms for name, ms in row["ms"].items() if name.startswith("pblas")), default=None)
            if best and ours:
                row["best other / pblas"] = round(best / ours, 3)
            row["ms"] = {name: round(ms, 4) for name, ms in row["ms"].items()}
            rows.append(row)
            if dist.get_rank() == 0:
                print(row, flush=True)
                if options.json:
                    device = torch.cuda.get_device_name() if GPUS else "CPU"
                    results_file.write(options.json, about(device, mesh.size()) | {"rows": rows})


if __name__ == "__main__":
    main()
