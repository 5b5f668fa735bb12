module longshore.dev/egress-proxy

go 1.25.0
