"""python -m longshore_rollout_worker"""

from longshore_rollout_worker.main import main

if __name__ == "__main__":
    main()
