# The program on CPUs, with Open MPI for several ranks: from the repository's root,
#   docker build -f containers/cpu.Dockerfile -t tokamak .
#   docker run --rm -v "$PWD":/work tokamak train my.toml
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make && rm -rf /var/lib/apt/lists/*
WORKDIR /tokamak
COPY . .
RUN make deb

FROM debian:12-slim
COPY --from=build /tokamak/build/portable/tokamak_*.deb /tmp/
RUN apt-get update && apt-get install -y /tmp/tokamak_*.deb libcurl4 && rm -rf /var/lib/apt/lists/* /tmp/*.deb
WORKDIR /work
# mpirun refuses root unless it is told.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ENTRYPOINT ["tokamak"]
