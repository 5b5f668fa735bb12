"""The main job from nothing to a report, in stages that can be interrupted and go on."""
