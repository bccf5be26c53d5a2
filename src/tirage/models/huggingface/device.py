"""The device that a model on PyTorch runs on."""

from __future__ import annotations

import torch

from tirage.errors import ParamsError


def checked_device(name: str | torch.device) -> torch.device:
    """A device of this machine by PyTorch's name for it.

    Raises ParamsError for one that PyTorch does not know or cannot use here.
    """
    try:
        device = torch.device(name)
        # PyTorch tells by another error for each kind of device that it cannot be used.
        torch.zeros(1, device=device).cpu()
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ParamsError(
            f"device must be one of this machine, such as 'cpu', 'cuda' or 'cuda:1', got {str(name)!r:.80} "
            f"({reason:.200}); use 'cpu', or leave it out"
        ) from None
    return device
