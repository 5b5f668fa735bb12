"""Proto and HTTP at the edge: gRPC servicer and OpenAI chat completions, mapped to the domain; no logic."""
