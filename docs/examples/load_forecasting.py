"""Load forecasting as in an example of APPFL: the next hour of a building, from its last 12 hours.

APPFL's script NREL_Preprocess.py writes ``NRELCAdataset.npz`` with ``data [buildings, quarters of
an hour, 8]``: load in kWh, quarter of the day, day of the week, temperature, wind, floor area, area
of walls, area of windows. If that file is in the working directory, it is used. Otherwise the same
layout is filled with generated curves, and the log says so.
"""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

ORIGINAL = Path("NRELCAdataset.npz")
HOURS, STRIDE = 12, 3  # hours of the past; hours between two examples of a building


def load() -> dict[str, np.ndarray]:
    if ORIGINAL.exists():
        print(f"load forecasting: {ORIGINAL}")
        with np.load(ORIGINAL, allow_pickle=False) as file:
            data = file["data"]
    else:
        print(f"load forecasting: a generated stand-in, as {ORIGINAL} is not here")
        data = generated()
    # By hour; scaled by constants, never by the rows.
    hourly = data[:, : data.shape[1] // 4 * 4].reshape(len(data), -1, 4, data.shape[2])
    load = 1000 * hourly[..., 0].sum(2) / hourly[:, :, 0, 5]  # kWh for 1000 square feet
    hour = hourly[:, :, 0, 1] / 96 * 2 * np.pi
    weekend = hourly[:, :, 0, 2] >= 5
    weather = (hourly[:, :, 0, 3] - 15) / 15, hourly[:, :, 0, 4] / 10
    series = np.stack([load, np.sin(hour), np.cos(hour), weekend, *weather], axis=2)
    starts = np.arange(0, series.shape[1] - HOURS, STRIDE)
    windows = series[:, starts[:, None] + np.arange(HOURS)].astype(np.float32)
    targets = load[:, starts + HOURS].astype(np.float32)
    # The last quarter of the time is tested.
    cut = len(starts) * 3 // 4
    users = np.arange(len(series))
    parts = {"train": slice(0, cut), "test": slice(cut, None)}
    return {
        f"{part}_{name}": values
        for part, where in parts.items()
        for name, values in {
            "images": windows[:, where].reshape(-1, *windows.shape[2:]),
            "labels": targets[:, where].reshape(-1),
            "users": users.repeat(targets[:, where].shape[1]),
        }.items()
    }


def generated(buildings: int = 42, days: int = 28) -> np.ndarray:
    """Return 42 buildings with opening hours, weekends and cooling of their own."""
    rng = np.random.default_rng(0)
    step = np.arange(96 * days)
    quarter, day = step % 96, step // 96 % 7
    season = 8 * np.sin((quarter - 36) / 96 * 2 * np.pi)
    data = np.zeros((buildings, len(step), 8))
    for building in data:
        area = rng.uniform(2_000, 50_000)
        opens, closes = rng.uniform(24, 40), rng.uniform(64, 88)
        is_open = 1 / (1 + np.exp(-np.minimum(quarter - opens, closes - quarter) / 2))
        is_open *= np.where(day >= 5, rng.uniform(0, 1), 1.0)
        warm = 18 + season + rng.normal(0, 2, days).repeat(96)
        cooling = rng.uniform(0.01, 0.05) * np.maximum(warm - 18, 0)
        rate = rng.uniform(0.1, 0.3) + rng.uniform(0.2, 0.6) * is_open * (1 + cooling)
        building[:, 0] = area / 1000 * rate * rng.lognormal(0, 0.05, len(step))
        building[:, 1], building[:, 2], building[:, 3] = quarter, day, warm
        building[:, 4] = rng.gamma(2, 1.5, len(step))
        building[:, 5:] = area, area / 15, area / 60
    return data


class LSTM(nn.Module):
    def __init__(self, image_shape: tuple[int, ...], classes: int, width: int = 20) -> None:
        super().__init__()
        self.lstm = nn.LSTM(image_shape[0], width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, windows: Tensor) -> Tensor:  # [B, 6, hours], channels first, -> [B, 1]
        return self.head(self.lstm(windows.mT)[0][:, -1])
