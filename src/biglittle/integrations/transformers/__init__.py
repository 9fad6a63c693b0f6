"""The way in from transformers: `model.generate(..., custom_generate=biglittle.assisted(draft))`.

transformers prepares everything (prompts, encoder outputs, processors, stopping criteria) and hands
the decoding over. It decodes a batch step by step, all rows at the same length; here rows advance
at their own pace. So whatever it made for a batch is taken apart into rows, whose processors and
criteria see what they would have seen there, and what is returned is what it would have returned.
"""

from .assisted import Assisted, assisted, policy_of

__all__ = ["Assisted", "assisted", "policy_of"]
