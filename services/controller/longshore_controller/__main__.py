"""python -m longshore_controller"""

from longshore_controller.main import main

main()
