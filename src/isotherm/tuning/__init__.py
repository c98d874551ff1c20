"""Find the temperature a model does best at: over the scale of all layers, over the length, and by layer or head.

>>> import isotherm
>>> record = isotherm.tune(model, text, tokenizer=tokenizer, lengths=[512, 2048])        # doctest: +SKIP
>>> record.lengths[0].best.factor, record.lengths[0].best.worth                           # doctest: +SKIP
"""
