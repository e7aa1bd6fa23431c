"""The checkpoint library behind the interfaces of other platforms, one package each.

A package knows its platform and the checkpoint library; what several adapters share is in files beside the packages. A
package must not know the server, nor torch unless its platform is torch. No package imports another platform's SDK,
because each SDK is an extra of its own; but the Trainer of Hugging Face is built on Accelerate, so ``hf_trainer`` uses
``accelerate``.
"""
