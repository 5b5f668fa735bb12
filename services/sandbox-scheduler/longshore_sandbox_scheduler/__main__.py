"""python -m longshore_sandbox_scheduler"""

from longshore_sandbox_scheduler.main import main

main()
