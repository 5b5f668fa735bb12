"""Work of `longshore sandbox`: the way in, commands, copies, tables. Imported by the commands when they run."""
