# The in-sandbox agent alone; an init container copies it into the task's pod (context: the folder of the binary).
FROM scratch
COPY longshore-agent /longshore-agent
ENTRYPOINT ["/longshore-agent"]
