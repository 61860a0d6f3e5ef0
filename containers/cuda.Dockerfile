# The program with the GPU backend, for sm_80, sm_90, sm_100 and sm_120: from the repository's root,
#   docker build -f containers/cuda.Dockerfile -t tokamak-cuda .
#   docker run --rm --gpus all --ipc host -v "$PWD":/work tokamak-cuda train my.toml --job.device=cuda
FROM nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04 AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git make python3-pip && rm -rf /var/lib/apt/lists/*
WORKDIR /tokamak
COPY . .
RUN make cuda-all && cmake --install build/cuda-all --strip --prefix /opt/tokamak

FROM nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04
COPY --from=build /opt/tokamak /usr/local
# What the program is linked with, of the same Ubuntu.
RUN apt-get update && apt-get install -y --no-install-recommends libdnnl3 libfmt9 libgomp1 libpcre2-8-0 \
    libprotobuf-lite32t64 libsimdjson19 libutf8proc3 libxxhash0 libopenmpi3t64 openmpi-bin libcurl4t64 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /work
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ENTRYPOINT ["tokamak"]
