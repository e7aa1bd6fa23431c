"""The data to train on: problems, samples, rewards and advantages.

``generation`` decides what is generated when, ``worker`` samples and ``reward_pool`` calls the environment. This room
must not know how a step is trained, saved or reported.
"""
