"""The steps of loading a model; `checkup/load.py` decides which of them to take.

`loaded` holds what goes in and what comes out. `device` picks where to compute, `hub` fetches a model by its name, `formats`
tells what a folder or a file holds, `pretrained`, `adapter` and `diffusion` build the model, `chatter` turns the libraries'
own messages and bars into ours.
"""
