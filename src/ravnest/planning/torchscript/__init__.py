"""A TorchScript module as an ordinary `nn.Module` that `torch.export` can follow."""

from ravnest.planning.torchscript.module import as_module, is_script, mode_is_baked

__all__ = ["as_module", "is_script", "mode_is_baked"]
