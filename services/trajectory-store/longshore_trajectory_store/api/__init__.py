"""The gRPC servicer and the maps between protos and domain; long polls and streams live here too."""
