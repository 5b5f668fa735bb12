"""python -m longshore_reward_verifier"""

from longshore_reward_verifier.main import main

if __name__ == "__main__":
    main()
