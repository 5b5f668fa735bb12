# The root of all stand-ins: what debootstrap made, in the context.
FROM scratch
ADD debian.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
